"""Cases of overrides, composed and checked in a Python with verl (composing.py)."""

import json
from pathlib import Path

from tests.patience import run
from tests.trainers.verl.environments import build

ROOT = Path(__file__).resolve().parents[2]


def composed_by(version, cases, folder, warm=None):
    """What verl makes of each case, what our checks and its own validation say, and what composing.py adds.

    In a fork of a `warm` Python, or in one of its own.
    """
    given, out = folder / f"{version}.json", folder / f"{version}-composed.json"
    given.write_text(json.dumps(cases), encoding="utf-8")
    words = ("-m", "tests.trainers.composing", version, str(given), str(out))
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "HOME": str(folder)}
    done = warm.run(*words, env=env) if warm else run([str(build(version)), *words], 900, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text(encoding="utf-8"))
