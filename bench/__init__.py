"""What is claimed, measured: `python -m bench`."""
