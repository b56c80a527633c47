"""Makes a run that was trained elsewhere one of ours: `python -m analysis.imports` writes its files."""
