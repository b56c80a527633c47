"""Decides what a comparison claims, and writes it as one block of text."""
