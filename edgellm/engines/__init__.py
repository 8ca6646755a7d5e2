"""Adapters over inference libraries. Only they know those libraries' types, layouts and errors."""
