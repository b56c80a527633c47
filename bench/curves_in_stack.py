"""Prepares inputs and trains runs with TRL's driver, in a stack: `python -m bench.curves_in_stack FOLDER`.

One process imports the libraries, and each training is a fork of it: importing takes longer than a short training.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from common.files import inputs_sha256, read_json, write_json


def _forked(work: Callable[[], object]) -> None:
    if (child := os.fork()) == 0:
        code = work()
        sys.stdout.flush()
        os._exit(int(code) if isinstance(code, int) else 0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(code)


def _trained(attempt: Path) -> int:
    from node.attempt import exit_code
    from trainers.trl.driver.train import train as of_trl

    sys.argv = ["train", str(attempt)]
    return exit_code(of_trl)


def _ordered(folder: Path, run: Path) -> Path:
    """attempt.json of a run, as the job on the node writes it."""
    spec, inputs = read_json(run / "spec.json"), folder / "inputs" / "inputs.json"
    attempt = {
        **{"attempt": 1, "run_id": run.name, "fingerprint": spec["fingerprint"], "cpus": 1},
        **{"spec": str(run / "spec.json"), "inputs": str(inputs), "inputs_sha256": inputs_sha256(read_json(inputs))},
        **{"attempt_dir": str(run / "1"), "checkpoint_dir": str(run / "checkpoints")},
    }
    write_json(run / "attempt.json", attempt)
    return run / "attempt.json"


def main(folder: Path) -> None:
    import datasets  # noqa: F401
    import transformers  # noqa: F401
    import trl  # noqa: F401

    from node.inputs import prepare_inputs

    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    _forked(lambda: prepare_inputs(request, folder / "inputs"))
    for run in sorted((folder / "runs").iterdir()):
        attempt = _ordered(folder, run)
        _forked(lambda attempt=attempt: _trained(attempt))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
