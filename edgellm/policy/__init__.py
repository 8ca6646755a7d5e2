"""Decisions: facts in, a choice with its reason out. Nothing here reads, writes or measures."""
