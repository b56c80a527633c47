"""The `rolloutbench` program: its rooms are in this folder where a wheel installed it, and beside it in a checkout."""

import sys
from pathlib import Path


def main() -> None:
    """Starts the program from its own rooms, whatever modules of their names the user has."""
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here if (here / "workflow").is_dir() else here.parent))
    from workflow.start import rolloutbench

    rolloutbench()
