"""Where snakemake runs: submits a run's job or attaches to it, watches it, and verifies what it has made."""
