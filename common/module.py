"""Runs a module of ours with any Python: `python common/module.py MODULE ARGUMENTS`, as `python -m` in our root would.

A wheel's modules are in a folder of their own, and another Snakemake's Python has none of them installed. The folder
where the user stands may have a json.py of somebody else, so it is not searched.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(path for path in sys.path if path and Path(path).resolve() != here)]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
