"""The worker: the engine in a process of its own, whose end the program survives."""
