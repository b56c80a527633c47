"""Computes the least time that a GPU needs for a step, and the waterfall from the step down to it."""
