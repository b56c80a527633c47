"""Writes all whole values of the goldens to a folder, for `diff -r` between two checkouts; or stores their digests."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from .canonical import digest
from .made import MADE, Whole

VALUES = Path(__file__).with_name("values")


def digests(whole: Whole) -> dict[str, dict[str, str]]:
    return {file: {part: digest(text) for part, text in parts.items()} for file, parts in whole.items()}


def fingerprints(whole: Whole) -> dict[str, dict[str, str]]:
    """Experiment -> run_id -> fingerprint, in full."""
    return {file: json.loads(parts["fingerprints"]) for file, parts in whole.items()}


def main() -> None:
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


def store(name: str, values: object) -> None:
    VALUES.mkdir(exist_ok=True)
    (VALUES / f"{name}.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write(folder: Path, whole: Whole) -> None:
    for file, parts in whole.items():
        path = folder / f"{file}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"## {part}\n{text}\n" for part, text in parts.items()), encoding="utf-8")


if __name__ == "__main__":
    main()
