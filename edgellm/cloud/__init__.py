"""The one room that may open a socket with content: what leaves this machine leaves here."""
