"""Readers of model files that believe nothing: every count is checked before memory is taken."""
