"""Prefix KV snapshots on disk: file layout, checks, lookup. Knows no engine."""
