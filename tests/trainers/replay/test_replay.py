"""Real replays of a few steps: each engine makes exactly the lengths that were asked for, and is what it says."""

import contextlib
import json
import shutil
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from analysis.collect import main as collect
from common.errors import UserError
from common.files import tree_sha256
from trainers.protocol import StackFacts
from trainers.replay import RELEASE
from trainers.replay.lengths import draw_lengths, idle_share
from workflow.config.plan import plan_runs
from workflow.config.reading import parse_config

from ...attempts import (
    DATA,
    EAGER,
    MODEL,
    SGLANG,
    TRANSFORMERS,
    VLLM,
    order_attempt,
    prepared,
    read_lines,
    run_job,
    run_python,
    run_warm,
)
from ..verl.environments import build
from .test_lengths import steps_table

FULL = pytest.mark.full("every engine replays")
ROOT = Path(__file__).resolve().parents[3]
STACKS = {"transformers": TRANSFORMERS, "vllm": VLLM, "sglang": SGLANG}
LENGTHS = {"mean": 5, "shortest": 2, "longest": 12}
VLLM_ENGINE = {"gpu_memory_utilization": 0.3, "enforce_eager": True, "max_num_seqs": 4}


def planned(engine, workload=None, /, accelerator="cpu", **options):
    arm = {"trainer": "replay", "engine": engine, "stack": STACKS[engine], "options": {"lengths": LENGTHS, **options}}
    config = {
        "experiment": "replayed",
        "baseline": "alone",
        "arms": {"alone": arm},
        "workload": {
            "model": {"source": "builtin:tiny-qwen2"},
            "data": {"source": "builtin:arithmetic", "rows": 32},
            "rewards": [{"name": "format"}],
            "steps": 3,
            "batch_size": 8,
            "num_generations": 4,
            "max_prompt_length": 48,
            "max_response_length": 16,
            "dtype": "float32",
            **(workload or {}),
        },
        "seeds": [0],
        "warmup_steps": 1,
    }
    return plan_runs(parse_config(config), lambda stack: StackFacts("trl", engine, accelerator, "1.16.0", "0"))


def attempt_of(spec, folder, inputs):
    """attempt.json of a run whose results lie in a folder."""
    return order_attempt(folder / "results" / "replayed" / "runs" / spec["run_id"], inputs, spec)


def replayed(stack_python, plan, folder, inputs):
    (run,) = plan.runs.values()
    attempt = attempt_of(run.spec, folder, inputs)
    return attempt.parent, run_job(stack_python(run.stack), run.spec["job_module"], attempt, **EAGER)


@FULL
@pytest.mark.parametrize(
    ("engine", "options"),
    [("vllm", VLLM_ENGINE), ("sglang", {"max_running_requests": 4, "disable_radix_cache": True})],
    ids=["vllm", "sglang"],
)
def test_every_completion_has_the_length_that_was_asked_for(engine, options, stack_python, made_inputs, tmp_path):
    folder, told = replayed(stack_python, planned(engine, engine=options), tmp_path, made_inputs)
    assert told.returncode == 0, told.stderr + told.stdout
    done = json.loads((folder / "done.json").read_text())
    # Exact in float32, after an update of all weights.
    assert done["resolved"]["engine"].items() >= {"name": engine, "greedy_equal": 1.0}.items()
    assert all(done["resolved"]["engine"].get(name, value) == value for name, value in options.items())
    assert done["resolved"]["engine"]["peak_memory_gib"] > 0 and any(
        name.startswith(engine) for name in done["versions"]
    )
    assert done["versions"]["replay"] == RELEASE and (done["first_step"], done["last_step"]) == (1, 3)

    run = folder.parents[1]
    (run / "done.json").write_text(json.dumps(done))
    assert collect([str(run)]) == 0
    steps = pq.read_table(run / "steps.parquet").to_pandas()
    for step in (1, 2, 3):
        of_step = steps[steps["step"] == step]
        made = of_step[of_step["kind"] == "sample"]["value"].tolist()
        assert made == draw_lengths(5, 2, 12, 8, f"step {step}")
        named = of_step.set_index("name")["value"]
        assert named["response_tokens"] == 40 and named["replay/max_length"] == 12
        assert named["replay/idle_share"] == idle_share(made, 4) > 0
        phases = set(of_step[of_step["kind"] == "phase"]["name"])
        assert phases == {"step", "step/sync_weights", "step/generate"}
        assert named["step"] >= named["step/generate"] + named["step/sync_weights"]


@FULL
def test_an_engine_with_weights_of_its_own_needs_none_and_gets_none(stack_python, made_inputs, tmp_path):
    plan = planned("vllm", engine={**VLLM_ENGINE, "load_format": "dummy"})
    model = tmp_path / "model"
    shutil.copytree(made_inputs.parent / "model", model, ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copy(made_inputs.parent / "data.parquet", tmp_path)
    told = json.loads(made_inputs.read_text())
    told["model"]["sha256"] = tree_sha256(model)
    (tmp_path / "inputs.json").write_text(json.dumps(told))
    folder, ended = replayed(stack_python, plan, tmp_path, tmp_path / "inputs.json")
    assert ended.returncode == 0, ended.stderr + ended.stdout
    done = json.loads((folder / "done.json").read_text())
    assert "greedy_equal" not in done["resolved"]["engine"] and done["last_step"] == 3
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["phases"].keys() for line in lines] == [{"step", "step/generate"}] * 3


@FULL
def test_it_replays_with_the_transformers_that_verls_older_stacks_have(tmp_path):
    """4.51 has another word for a model's number format; it is there beside vLLM 0.8.5 and SGLang 0.4.6."""
    python = build("0.4.1")
    request = {"data": DATA, "model": MODEL, "max_prompt_length": 48, "max_response_length": 16}
    inputs = prepared(python, tmp_path, request)
    folder, told = replayed(lambda stack: python, planned("transformers"), tmp_path, inputs)
    assert told.returncode == 0, told.stderr + told.stdout
    done = json.loads((folder / "done.json").read_text())
    assert done["versions"]["transformers"].startswith("4.51.") and done["last_step"] == 3


@FULL
def test_lengths_of_a_run_are_pinned_when_it_is_planned(stack_python, made_inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [(step, "sample", "response_length", float(step + n)) for step in (1, 2) for n in range(4)]
    source = steps_table(tmp_path / "steps.parquet", rows)
    words = {"steps": 2, "batch_size": 4}
    before = planned("transformers", words, lengths={"source": source})
    folder, told = replayed(stack_python, before, tmp_path, made_inputs)
    assert told.returncode == 0, told.stderr
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["samples"]["response_length"] for line in lines] == [[1, 2, 3, 4], [2, 3, 4, 5]]
    assert [line["scalars"]["replay/idle_share"] for line in lines] == [
        idle_share([1, 2, 3, 4], 4),
        idle_share([2, 3, 4, 5], 4),
    ]

    steps_table(tmp_path / "steps.parquet", [*rows, (3, "sample", "response_length", 1.0)])
    after = planned("transformers", words, lengths={"source": source})
    assert after.runs["alone-s0"].fingerprint != before.runs["alone-s0"].fingerprint
    folder, told = replayed(stack_python, before, tmp_path / "again", made_inputs)
    assert told.returncode == 2 and "has changed since the run was planned" in told.stderr + told.stdout
    assert "Traceback" not in told.stderr + told.stdout


ON_GPU, SLEEPS = {"gpu": "H100-80GB"}, {"load_format": "dummy", "enable_sleep_mode": True}
REFUSED = {
    "nodes": ("vllm", {"nodes": 2}, {}, "workload.nodes must be 1 with trainer replay"),
    "no GPU": ("vllm", {}, {"tensor_parallel": 2}, r"must be workload.gpus_per_node \(1\): a replay is one engine"),
    "2 of 8 GPUs": ("vllm", ON_GPU | {"gpus_per_node": 8}, {"tensor_parallel": 2}, r"workload.gpus_per_node \(8\)"),
    "in a trainer": ("transformers", ON_GPU | {"gpus_per_node": 2}, {}, "gpus_per_node must be 1 with engine transf"),
    "no weights": (
        *("vllm", {"model": {"source": "builtin:phi4-shape"}}, {}),
        "builtin:phi4-shape has no weights; set options.engine.load_format: dummy",
    ),
    "own weights": ("transformers", {}, {"engine": {"load_format": "dummy"}}, "is for vllm and sglang without sleep"),
    "asleep": ("vllm", {}, {"engine": SLEEPS}, "without sleep"),
    "the workload's": ("vllm", {}, {"engine": {"seed": 3}}, "engine.seed is not free: the replay's other settings"),
    "no settings": ("transformers", {}, {"engine": {"x": 1}}, "engine.x is not free: transformers has no settings"),
    "no lengths": ("vllm", {}, {"lengths": {}}, "must give the lengths of the completions"),
    "no mean": ("vllm", {}, {"lengths": {"shortest": 3}}, "mean must be a number of tokens"),
    "too long": ("vllm", {}, {"lengths": {"mean": 300}}, "1 <= shortest <= mean <= longest <= workload.max_response_l"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_is_refused_in_the_plan(name):
    engine, workload, options, said = REFUSED[name]
    with pytest.raises(UserError, match=said):
        planned(engine, workload, accelerator="cuda" if "gpu" in workload else "cpu", **options)


def test_what_can_be_replayed_is_planned():
    """An engine has all GPUs of its run; with one GPU or none its arguments are as they always were."""
    planned("vllm", {"model": {"source": "builtin:phi4-shape"}}, engine={"load_format": "dummy"})
    (run,) = planned("vllm", lengths={"mean": 5}).runs.values()
    assert run.spec["trainer_args"]["lengths"] == {"mean": 5.0, "shortest": 1, "longest": 16}
    one, two = (
        next(iter(planned("sglang", ON_GPU | {"gpus_per_node": gpus}, accelerator="cuda").runs.values())).spec
        for gpus in (1, 2)
    )
    assert "spread" not in two and two["trainer_args"]["tensor_parallel"] == 2
    assert not {"spread", "tensor_parallel"} & {*one, *one["trainer_args"]}


def test_a_gpu_that_somebody_else_uses_is_refused():
    from trainers.replay.driver import require_alone

    require_alone(free=79 * 2**30, total=80 * 2**30)
    with pytest.raises(UserError, match=r"another process uses 40.0 GiB of this GPU"):
        require_alone(free=40 * 2**30, total=80 * 2**30)


# What an engine does, the exit code, the line, and how many steps were done.
BROKEN = {
    # Its end of text is let through on purpose.
    "stops short": ("row if greedy else row[:-1]", 2, "the work is not equal: in step 1", 0),
    "fails": ("row if steps.count(False) < 2 else 1 / 0", 1, "the engine failed in step 2: ZeroDivisionError: ", 1),
}
BREAK = """
import sys
from engines.transformers.replay import TransformersReplay as Whole
from node.attempt import exit_code
from trainers.replay import driver
generate, steps = Whole.generate, []
def made(engine, prompts, lengths, greedy=False):
    steps.append(greedy)
    return [DOES for row in generate(engine, prompts, lengths, greedy)]
Whole.generate = made
sys.exit(exit_code(driver.replay))
"""


@FULL
@pytest.mark.parametrize("name", BROKEN)
def test_an_engine_that_breaks_is_named_and_gives_no_result(name, stack_python, made_inputs, tmp_path):
    does, code, said, steps = BROKEN[name]
    (run,) = planned("transformers").runs.values()
    attempt = attempt_of(run.spec, tmp_path, made_inputs)
    told = run_warm(stack_python(TRANSFORMERS), "-c", BREAK.replace("DOES", does), attempt)
    assert told.returncode == code and said in told.stderr + told.stdout
    assert len(read_lines(attempt.parent / "metrics.jsonl")) == steps and not (attempt.parent / "done.json").exists()


# A file, which the shards import again; on a CPU each shard needs a CPU of its own.
TWO = """
import os, sys
from engines.vllm import replay as engine
from node.attempt import exit_code
from trainers.replay import driver
build, cpus = engine.build, sorted(os.sched_getaffinity(0))
def two(*given):
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cpus[0]}|{cpus[-1]}"
    return build(*given)
engine.build = two
if __name__ == "__main__":
    sys.exit(exit_code(driver.replay))
"""


@FULL
def test_one_engine_of_two_processes_writes_what_the_model_writes(stack_python, made_inputs, tmp_path):
    """vLLM starts its shards itself, and has loaded the weights itself: none are sent."""
    (run,) = planned("vllm", engine=VLLM_ENGINE).runs.values()
    spec = {**run.spec, "trainer_args": {**run.spec["trainer_args"], "tensor_parallel": 2}}
    attempt = attempt_of(spec, tmp_path, made_inputs)
    program = attempt.parent / "program.py"
    program.write_text(TWO)
    mark = {"PYTHONPATH": str(ROOT), "VLLM_CPU_KVCACHE_SPACE": "1", "REPLAY_MARK": str(attempt)}
    told = run_python(stack_python(VLLM), program, attempt, **mark, **EAGER)
    assert told.returncode == 0, told.stderr + told.stdout
    engine = json.loads((attempt.parent / "done.json").read_text())["resolved"]["engine"]
    assert engine["tensor_parallel_size"] == 2 and engine["greedy_equal"] == 1.0
    lines = read_lines(attempt.parent / "metrics.jsonl")
    assert [line["samples"]["response_length"] for line in lines] == [
        draw_lengths(5, 2, 12, 8, f"step {step}") for step in (1, 2, 3)
    ]
    assert set(lines[0]["phases"]) == {"step", "step/generate"}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            assert process.environ().get("REPLAY_MARK") != str(attempt), "an orphan"
