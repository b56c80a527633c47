"""Engines, runs and nights whose truth is known: what the estimates are tested on, and `python -m bench` measured."""
