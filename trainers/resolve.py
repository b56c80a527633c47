"""Resolves all settings of a trainer: `python -m trainers.resolve --with MODULE --request FILE --out FILE`.

Runs in the stack before any job is queued, and reports an unknown setting or a bad value in one line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.files import read_json_object, write_json
from common.redaction import without_secrets
from node.exit_codes import run
from node.own_reward import RewardProgram


def resolved(request: Mapping[str, Any], resolver: str) -> dict[str, Any]:
    """`{"trainer", "version", "settings"}` for a request with `trainer`, `trainer_args` and `rewards`.

    `resolver` is the trainer's module. `settings` are flat, by dotted key. `UserError` for settings that the trainer
    refuses, and for a file of rewards that does not load in this stack.
    """
    for reward in request.get("rewards") or ():
        if "code" in reward:
            RewardProgram(reward).close()
    version, settings = importlib.import_module(resolver).resolved(
        request["trainer_args"], request.get("rewards") or ()
    )
    plain = {str(key): json.loads(json.dumps(value, default=str)) for key, value in sorted(settings.items())}
    return {"trainer": request["trainer"], "version": version, "settings": without_secrets(plain)}


def main() -> None:
    """Read a request and write its resolved settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with", dest="resolver", required=True, metavar="MODULE")
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    request = read_json_object(arguments.request, "the rule `settings`")
    write_json(arguments.out, resolved(request, arguments.resolver))


if __name__ == "__main__":
    sys.exit(run(main))
