"""How does a run that was trained elsewhere become one of ours? `python -m analysis.imports` makes its files."""
