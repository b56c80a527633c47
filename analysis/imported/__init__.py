"""How does a run that was trained elsewhere become one of ours? `python -m analysis.imported` makes its files."""
