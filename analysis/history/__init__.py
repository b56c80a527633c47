"""Reads finished experiments and draws their speed over time."""
