"""verl's own TaskRunner, data, rewards, loops, metrics and loggers in a real Ray; the workers alone are stand-ins."""

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from analysis.collect import main as collect
from analysis.steps import read_steps
from engines import reported as term
from engines.sglang import SGLANG
from trainers.protocol import StackFacts
from workflow.config.plan import plan_runs
from workflow.config.reading import parse_config
from workflow.job.place import Place
from workflow.job.ray import RayHead
from workflow.job.rendezvous import TaskSetup

from ... import patience
from ...attempts import inputs_of, order_attempt, read_lines
from .environments import build
from .tiers import RELEASES

ROOT = Path(__file__).resolve().parents[3]
REWARDS = [{"name": "phi4", "weight": 1.0}, {"name": "length", "weight": 0.5, "options": {"target": 20}}]
WORKLOAD = {
    "model": {"source": "builtin:tiny-qwen2"}, "data": {"source": "builtin:arithmetic", "rows": 32}, "rewards": REWARDS,
    "steps": 6, "batch_size": 8, "num_generations": 4, "micro_batch_size": 4, "max_prompt_length": 64,
    "max_response_length": 24, "save_steps": 100, "gpus_per_node": 2,
}  # fmt: skip

# A module of verl's -> the stand-in's file and function.
STANDIN = {
    "verl.trainer.ppo.ray_trainer": ("workers", "patch_ray_trainer"),
    "verl.trainer.ppo.v1.trainer_base": ("workers", "patch_v1"),
    "verl.trainer.ppo.v1.agent_loop_tq": ("workers", "patch_agent_loop"),
}
OPTIONS = {
    "0.4.1": {},
    # Each unit is a process that imports torch.
    "0.9.1": {"transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}},
}
# With two GPUs these are all that the plan asks for, and with one fewer the job does not start.
LEAST_CPUS = {"0.4.1": 1 + 2, "0.9.1": 1 + 1 + 3 * 2}


class Bench:
    """One version's inputs and Ray cluster, in a folder of its own; attempts are forks of its `warm` Python."""

    def __init__(self, version, warm, folder):
        self.version, self.warm, self.folder = version, warm, folder
        self.inputs = inputs_of(warm, folder, WORKLOAD)
        self.ray = {}
        self.jobs = {}

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "RAY"))}
        return {
            **kept,
            "PYTHONPATH": f"{ROOT}:{Path(__file__).with_name('standin')}",
            "STANDIN": json.dumps(STANDIN),
            "STANDIN_FOLDER": str(self.folder),
            "OMP_NUM_THREADS": "2",
            # Ray would start a worker for each CPU before any is asked for; verl's have an environment of their own.
            "RAY_prestart_worker_first_driver": "0",
            "NCCL_DEBUG": "INFO",  # as the arm in `order` has it
            "WANDB_API_KEY": "s3cret" * 7,
        }

    def order(self, run_id, number, **words):
        """An attempt as the launcher orders it."""
        arm = {"trainer": "verl", "engine": "sglang", "stack": "verl-sglang", "options": OPTIONS[self.version]}
        raw = {"experiment": "tests", "baseline": "sglang", "arms": {"sglang": arm}, "seeds": [0]}
        facts = StackFacts("verl", "sglang", "cuda", self.version, "0" * 12)
        plan = plan_runs(parse_config(raw | {"workload": WORKLOAD | words}), lambda stack: facts)
        spec = plan.runs["sglang-s0"].spec
        run = self.folder / "runs" / run_id
        file = order_attempt(run, self.inputs, spec, number)
        file.write_text(json.dumps(json.loads(file.read_text()) | {"env": {"NCCL_DEBUG": "INFO"}}))
        return file.parent

    def start(self, folder, **changes):
        program = ("-m", "trainers.verl.driver.train", folder / "attempt.json")
        environment = {**self.environment(), **self.ray, **changes}
        self.jobs[folder] = self.warm.start(*program, env=environment, joined=True)
        return self.jobs[folder]

    def log(self, folder):
        """What an attempt that has ended printed."""
        return self.jobs[folder].communicate()[0]

    def finish(self, folder, **changes):
        return ended(self.start(folder, **changes))


@contextmanager
def ray_of(bench):
    setup = TaskSetup(
        place=Place.from_environment({"SLURM_MEM_PER_NODE": "320"}, cpus=LEAST_CPUS[bench.version]),
        folder=bench.folder / "nodes",
        python=build(bench.version),
        environment=bench.environment(),
        cwd=ROOT,
        log=bench.folder / "ray.log",
    )
    with RayHead(setup) as head:
        head.start()
        head.wait_for_nodes()
        bench.ray = head.environment()
        yield


@pytest.fixture(scope="module", params=RELEASES)
def bench(request, warm_verl, tmp_path_factory):
    made = Bench(request.param, warm_verl(request.param), tmp_path_factory.mktemp("verl"))
    with ray_of(made):
        yield made


def wait_for(found, job):
    """Until it is found, or the job has ended; most of its work is Ray's, which this process has started, too."""
    patience.until(lambda: found() or job.poll() is not None, os.getpid(), 200)


def ended(job):
    wait_for(lambda: False, job)
    return job.returncode


def lines_of(folder):
    return read_lines(folder / "metrics.jsonl")


def history_of(folder):
    """The rows of wandb's file by step, read by the controller's wandb."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    done = patience.run([sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)], 60)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    return {row["_step"]: row for row in rows}


def hold_until(found, folder, job, then=lambda: None):
    """Have a life wait in its second step until something is so."""
    wait_for(lambda: lines_of(folder), job)
    then()
    wait_for(found, job)
    (folder / "hold").unlink()


def test_a_run_in_two_lives(bench, tmp_path):
    old = bench.version == "0.4.1"
    # The other stand-in has no engine for a validation: test_v1_loop.py has samples there.
    words = {"save_steps": 100, **({"samples": 2, "test_steps": 6} if old else {})}
    first = bench.order("two-lives", 1, **words)
    (first / "hold").touch()
    job = bench.start(first)

    def stop():
        assert job.poll() is None, bench.log(first)
        os.kill(job.pid, signal.SIGUSR1)
        os.kill(job.pid, signal.SIGTERM)

    hold_until((first / "stop").exists, first, job, stop)
    assert ended(job) == 75, bench.log(first)
    before = lines_of(first)
    assert "stopped: after step 2 of 6, with a checkpoint" in bench.log(first)
    # Ray may end before it has passed on what was printed last.
    assert f"step 1/6  {before[0]['scalars']['timing_s/step']:.2f} s  reward " in bench.log(first)
    assert not (first / "done.json").exists()
    check_wandb(first, before)

    # What an attempt leaves that was killed as it saved: the next one must see through it.
    (checkpoints,) = (first.parents[1] / "checkpoints").iterdir()
    (checkpoints / "global_step_3" / "actor").mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("")
    second = bench.order("two-lives", 2, **words)
    (second / "hold").touch()
    job = bench.start(second)
    killed = []

    def lose_tracker():
        (tracker,) = (
            process
            for process in psutil.process_iter(["name", "environ"])
            if process.info["name"] == "wandb-core" and (process.info["environ"] or {}).get("WANDB_DIR") == str(second)
        )
        tracker.kill()
        killed.append(tracker)

    hold_until(lambda: patience.has_ended(killed[0]), second, job, lose_tracker)
    assert ended(job) == 0, bench.log(second)
    after = lines_of(second)
    assert [(line["step"], line["resumed"]) for line in before + after] == [(at, at == 3) for at in range(1, 7)]
    assert "wandb has ended" in bench.log(second)
    done = json.loads((second / "done.json").read_text())
    assert (done["first_step"], done["last_step"], done["steps"]) == (3, 6, 4)
    assert done["versions"]["verl"] == bench.version
    assert done["hardware"]["threads"] == 1  # two CPUs, two GPUs
    assert done["resolved"]["engine"]["name"] == "sglang"
    # All ten terms are the engine's own words, not what verl was given.
    assert SGLANG.reported(done["resolved"]["engine"]) == {
        **{term.GRAPHS: "on", term.GRAPH_SIZE: 160, term.CACHE: 123_456, term.SEQUENCES: 48, term.PREFILL: 8192},
        **{term.ATTENTION: "FlashAttention", term.PREFIX: "on", term.QUANTISATION: "none", term.SLEEP: "on"},
        term.SEED: "fixed",
    }
    assert done["resolved"]["trainer"]["data.max_response_length"] == 24
    assert done["resolved"]["environment"]["NCCL_DEBUG"] == "INFO"  # the arm's own
    assert done["resolved"]["environment"]["VLLM_LOGGING_LEVEL"] == "INFO"  # the driver's, not verl's
    if old:
        taken = [read_lines(folder / "samples.jsonl") for folder in (first, second)]
        assert [[line["step"] for line in lines] for lines in taken] == [[0], [6]]
        for (line,) in taken:
            assert line["problem"] is None and [one["row"] for one in line["samples"]] == [0, 1]
            assert all(list(one["rewards"]) == ["phi4", "length"] for one in line["samples"])
    for line in before + after:
        check_line(line, old)
    check_steps(second, tmp_path)
    for path in (bench.folder / "runs").rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
    assert "s3cret" not in bench.log(first) + bench.log(second)


def check_line(line, old):
    """What every step's line says of its batch, by the stand-ins' responses."""
    responses, scalars = line["samples"]["response_length"], line["scalars"]
    assert len(responses) == 8 and line["phases"] == {}
    assert sum(responses) == scalars["response_tokens"]
    assert scalars["timing_s/step"] > scalars["timing_s/gen"] > 0.3
    # The other stand-in has no log-probabilities, and no response of its ends: test_v1_loop.py has both.
    assert not old or 0 < scalars["mismatch/abs"] < 1
    assert scalars.get("shortened_responses", 0) == (0 if old else sum(length < 24 for length in responses))
    # Random responses have no thought: -1, or -0.5 where one was cut; 0.5 at most for its length.
    assert -1.0 <= scalars["critic/score/min"] <= scalars["critic/score/max"] <= 0.5
    if old:
        mean = {name: scalars[f"rewards/{name}/mean"] for name in ("phi4", "length")}
        assert scalars["critic/score/mean"] == pytest.approx(mean["phi4"] + 0.5 * mean["length"], abs=1e-5)


def check_wandb(folder, lines):
    """metrics.jsonl has wandb's numbers to the last digit."""
    rows = history_of(folder)
    for line in lines:
        own = {
            name: value for name, value in line["scalars"].items() if name not in ("prompt_tokens", "response_tokens")
        }
        assert own == {name: rows[line["step"]][name] for name in own}


def check_steps(last_life, folder):
    """Collected, a run's phases add up to its steps, with no doubt about a timer."""
    run = last_life.parents[1]
    (run / "done.json").write_bytes((last_life / "done.json").read_bytes())
    assert collect([str(run), "--out", str(folder / "steps.parquet")]) == 0
    table, metadata = read_steps(folder / "steps.parquet")
    frame = table.to_pandas()
    assert {one["code"] for one in metadata["verdicts"]} <= {"timer-place", "responses-shortened", "wait-polled"}
    phases = frame[frame["kind"] == "phase"]
    steps = phases[phases["name"] == "step"].set_index("step")["value"]
    assert [*steps.index] == [1, 2, 3, 4, 5, 6]
    assert phases.groupby("step")["exclusive_s"].sum().tolist() == pytest.approx(steps.tolist(), abs=1e-9)


@pytest.mark.full("verl's own way to forget checkpoints")
@pytest.mark.parametrize("bench", ["0.4.1"], indirect=True)
def test_a_run_that_is_done_removes_what_verl_leaves(bench):
    """Of older checkpoints verl leaves half of the folder."""
    first = bench.order("done", 1, steps=4, save_steps=1)
    assert bench.finish(first) == 0, bench.log(first)
    (checkpoints,) = (first.parents[1] / "checkpoints").iterdir()
    assert len(list(checkpoints.iterdir())) > 3
    second = bench.order("done", 2, steps=4, save_steps=1)
    assert bench.finish(second) == 0, bench.log(second)
    done = json.loads((second / "done.json").read_text())
    assert (done["first_step"], done["last_step"], done["steps"]) == (5, 4, 0)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["global_step_3", "global_step_4"]


@pytest.mark.full("both releases' own refusals")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"of_the_other_release": True}, "the settings are for verl "),
        ({"more": "trainer.total_epoch=2"}, "Could not override 'trainer.total_epoch'"),
        ({"more": "data.train_batch_size=64"}, "a step takes 64 prompts (workload.batch_size / num_generations), and"),
        ({"environment": {"RAY_ADDRESS": ""}}, "RAY_ADDRESS is not set"),
        ({"least_cpus": 99}, "verl reserves 99 CPUs in Ray, and the job's nodes have"),
        ({"crash": True}, "error: RuntimeError: verl failed: RuntimeError: made to crash"),
    ],
)
def test_a_mistake_and_what_fails_in_ray_are_one_line(change, says, bench):
    folder = bench.order(f"mistake {says[:20]}", 1)
    file = folder.parents[1] / "spec.json"
    spec = json.loads(file.read_text())
    if "of_the_other_release" in change:
        spec["trainer_args"]["version"] = next(version for version in LEAST_CPUS if version != bench.version)
    spec["trainer_args"]["overrides"] += [change["more"]] if "more" in change else []
    spec["least_cpus"] = change.get("least_cpus", spec["least_cpus"])
    file.write_text(json.dumps(spec))
    crash = bench.folder / "crash"
    if "crash" in change:
        crash.touch()
    code = bench.finish(folder, **change.get("environment", {}))
    crash.unlink(missing_ok=True)
    (line,) = [line for line in bench.log(folder).splitlines() if line.startswith("error: ")]
    assert says in line and bench.log(folder).endswith(line + "\n")
    assert code == (1 if "crash" in change else 2)
