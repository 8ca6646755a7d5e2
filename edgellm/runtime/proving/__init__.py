"""Proving what is promised of `private` and `offline`, on the user's own machine."""
