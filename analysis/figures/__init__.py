"""Draws the figures of a report and of a history."""
