"""What this machine has, and how it feels."""
