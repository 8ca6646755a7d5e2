"""Places that machines share, and a store that reads through one."""
