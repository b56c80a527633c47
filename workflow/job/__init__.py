"""On the compute node: one life of a job, its trainer, its Ray or its processes, and how they end."""
