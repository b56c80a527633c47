"""A real Slurm on this machine, and the tests that need one."""
