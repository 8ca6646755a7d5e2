"""The command line: the one room that prints. Results go to stdout, all else to stderr."""
