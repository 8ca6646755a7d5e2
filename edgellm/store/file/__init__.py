"""One snapshot file: read and checked, or written."""
