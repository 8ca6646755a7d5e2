"""Decode loop, sessions and conversion: the rooms below, wired together."""
