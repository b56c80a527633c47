"""TRL's and ms-swift's own console programs, unedited, in a script that runs in their stacks' environments."""

import json
import shutil
from pathlib import Path

import pytest

from analysis.runs import read_run
from tests.attempts import TRANSFORMERS
from workflow.launch_scripts.log import collect
from workflow.runs.paths import RunPaths

from .script_bench import ScriptBench

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def project(made_inputs, tmp_path):
    """Makes a run of a script beside the tiny model and some sums."""
    made = []

    def make(script):
        made.append(ScriptBench(tmp_path, script, head_env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}))
        folder = made[0].script.parent
        model = json.loads(made_inputs.read_text())["model"]["path"]
        (folder / "model").symlink_to(made_inputs.parent / model)
        (folder / "data").mkdir()
        sums = [(a, b) for a in range(8) for b in range(4)]
        key = "messages" if "swift" in script else "prompt"
        rows = [{key: [{"role": "user", "content": f"{a} + {b}?"}], "solution": str(a + b)} for a, b in sums]
        (folder / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        shutil.copy(PROGRAMS / "grpo.yaml", folder)
        return made[0]

    yield make
    made[0].end()


@pytest.mark.full("a training by trl's and one by ms-swift's own program: minutes")
@pytest.mark.parametrize(("trainer", "stack"), [("trl", TRANSFORMERS), ("swift", "swift-transformers-cpu")])
def test_a_trainers_own_program_runs_unedited_and_its_log_is_read(project, stack_python, trainer, stack):
    script = (PROGRAMS / f"{trainer}.sh").read_text()
    one = project(script)
    written = one.script.read_text()
    one.spec = one.plan(python=str(stack_python(stack)), words=["temperature=1.0"]).runs["a-s0"].spec
    head = one.start()
    said = one.ended(head, silence_s=300)
    assert head.returncode == 0, said
    assert "--temperature 1.0" in (one.run / "attempts" / "1" / "run.sh").read_text()
    assert one.script.read_text() == written and not one.calls(), "the stand-ins are not on its PATH first"
    done = one.done()
    assert (done["first_step"], done["last_step"], done["steps"]) == (1, 3, 3)
    assert {"torch", "transformers"} <= done["versions"].keys()
    assert collect(RunPaths(one.run), one.run / "steps.parquet")
    run, verdicts = read_run(one.folder / "results" / "experiment", "a-s0", None)
    assert run.spec["trainer"] == trainer and not [one for one in verdicts if one.level == "error"], verdicts
    assert len(set(run.rows(["step"])["step"].to_pylist())) == 3
