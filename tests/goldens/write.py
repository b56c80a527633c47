"""Writes all whole values of the goldens to a folder, for `diff -r` between two checkouts; or stores their digests."""

import argparse
import json
import tempfile
from pathlib import Path

from .canonical import digest
from .made import MADE

VALUES = Path(__file__).with_name("values")


def digests(whole):
    return {file: {part: digest(text) for part, text in parts.items()} for file, parts in whole.items()}


def fingerprints(whole):
    """Experiment -> run_id -> fingerprint, in full."""
    return {file: json.loads(parts["fingerprints"]) for file, parts in whole.items()}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.goldens.write", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", help="a new folder for the whole values")
    parser.add_argument("--store", action="store_true", help=f"write the digests to {VALUES.name}/")
    parser.add_argument("--only", nargs="+", choices=MADE, default=list(MADE))
    args = parser.parse_args()
    if not args.out and not args.store:
        parser.error("give a folder, --store, or both")
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            whole = MADE[name](Path(folder))
        if args.store:
            store(name, digests(whole))
            if name == "plans":
                store("fingerprints", fingerprints(whole))
        if args.out:
            write(args.out / name, whole)


def store(name, values):
    VALUES.mkdir(exist_ok=True)
    (VALUES / f"{name}.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write(folder, whole):
    for file, parts in whole.items():
        path = folder / f"{file}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"## {part}\n{text}\n" for part, text in parts.items()), encoding="utf-8")


if __name__ == "__main__":
    main()
