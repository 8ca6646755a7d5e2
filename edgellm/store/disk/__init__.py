"""Where files lie, how they are named and opened, and what room there is."""
