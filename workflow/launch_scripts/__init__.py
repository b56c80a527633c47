"""Reads launch scripts: bash, `#SBATCH` lines, and the command that trains. Nothing of a script is ever run."""
