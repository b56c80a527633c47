"""What is claimed, measured: `make bench`."""
