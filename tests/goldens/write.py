"""Stores the goldens' values as they are now: `python -m tests.goldens.write`, then look at `git diff`."""

import argparse
import json
import tempfile
from pathlib import Path

from .made import MADE

VALUES = Path(__file__).with_name("values")


def text_of(value):
    """A value as it is stored."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.goldens.write", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MADE, default=list(MADE))
    for name in parser.parse_args().only:
        with tempfile.TemporaryDirectory() as folder:
            (VALUES / f"{name}.json").write_text(text_of(MADE[name](Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
