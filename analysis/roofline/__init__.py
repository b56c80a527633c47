"""Computes the least time that a GPU needs for a step's responses, and how near generation is to it."""
