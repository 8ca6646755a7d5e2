"""Names to verified files on this disk. What a name means is decided here, nowhere else."""
