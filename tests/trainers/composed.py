"""Cases of overrides, composed and checked in a Python with verl (composing.py)."""

import json
from pathlib import Path

from tests.patience import run
from tests.trainers.verl.environments import build

ROOT = Path(__file__).resolve().parents[2]


def composed_by(version, cases, folder):
    """What verl makes of each case, what our checks and its own validation say, and what composing.py adds."""
    given, out = folder / f"{version}.json", folder / f"{version}-composed.json"
    given.write_text(json.dumps(cases), encoding="utf-8")
    command = [str(build(version)), "tests/trainers/composing.py", version, str(given), str(out)]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "HOME": str(folder)}
    done = run(command, 900, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(out.read_text(encoding="utf-8"))
    return results
