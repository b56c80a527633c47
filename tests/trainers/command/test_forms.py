"""Forms in which people write launch scripts: each starts as it is, with another engine in the training's words.

The forms (`forms/`) are those of public examples of verl, TRL, ms-swift, OpenRLHF, NeMo-RL and slime, written anew and
short; the second line says which word names the engine. Programs are stand-ins that note how they were called; those
that start others start them.
"""

import os
import subprocess
from pathlib import Path

import pytest

from trainers.command.driver import keep, prepared
from workflow.config.plan import load_plan

from .script_bench import program

NOTE = '#!/bin/bash\nprintf \'%s\\n\' "${0##*/} $*" >> "$BENCH/calls"\n'
# Options before the program that these start.
STARTS = (
    NOTE
    + """while [ $# -gt 0 ]; do
  case "$1" in --) shift; break;; run|exec|job|submit|pull) shift;; -*) shift;; *) break;; esac
done
"""
)
PROGRAMS = {
    **dict.fromkeys(("python3", "torchrun", "swift"), NOTE),
    **dict.fromkeys(("srun", "ray"), STARTS + '[ $# -eq 0 ] || exec "$@"\n'),
    # The image comes before the program.
    "apptainer": STARTS + '[ $# -lt 2 ] || { shift; exec "$@"; }\n',
}
FORMS = {path.stem: path.read_text() for path in sorted(Path(__file__).with_name("forms").glob("*.sh"))}


def start(text, words, folder, patch):
    """Run a script's copy as the driver does, with these words."""
    for one, does in PROGRAMS.items():
        program(folder / "bin" / one, does)
    script = program(folder / "project" / "scripts" / "run.sh", text)
    (script.parent / "model.sh").write_text("MODEL_ARGS='--model m'\n")
    patch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
    patch.setenv("BENCH", str(folder))
    for variable in [name for name in os.environ if name.startswith("SLURM_")]:
        patch.delenv(variable)
    patch.setenv("SLURM_SUBMIT_DIR", str(script.parent))
    arm = {"trainer": "command", "engine": "sglang", "options": {"script": str(script), "words": words}}
    (run,) = load_plan({"experiment": "e", "baseline": "a", "arms": {"a": arm}}).runs.values()
    run_folder = folder / "results" / "e" / "runs" / run.run_id
    attempt = run_folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    keep(run.spec, run_folder)
    command, cwd, environment = prepared(run.spec, attempt)
    assert script.read_text() == text
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_starts_without_an_edit(form, tmp_path, monkeypatch):
    name = FORMS[form].splitlines()[1].removeprefix("# another engine: ")
    done = start(FORMS[form], [f"{name}=sglang"], tmp_path, monkeypatch)
    assert done.returncode == 0, done.stderr
    called = (tmp_path / "calls").read_text().splitlines()
    trained = [call for call in called if not call.startswith(("srun", "ray", "apptainer"))]
    said = [call.replace("vllm_mode", "").replace("use_vllm", "") for call in trained]
    assert said and all("sglang" in call and "vllm" not in call for call in said), called


def test_the_first_lines_options_hold(tmp_path, monkeypatch):
    assert start("#!/bin/bash -e\nfalse\npython3 train.py\n", [], tmp_path, monkeypatch).returncode == 1
    assert not (tmp_path / "calls").exists()
