"""Encrypted files: the key, and chunks that are sealed one by one."""
