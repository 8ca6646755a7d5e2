"""Snapshots on their way to another machine."""
