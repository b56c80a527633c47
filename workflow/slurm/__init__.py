"""Slurm: its commands, the answer that all share, a site's profile, and the request that it makes."""
