"""Reads the timings of steps: one module for each source."""
