"""Trainers whose runs are imported, not driven: a table of what they log, and the consoles that are read."""
