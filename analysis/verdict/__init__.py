"""Decides what a comparison claims, and renders it as one block of text."""
