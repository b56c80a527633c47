"""verl's own TaskRunner, data, rewards, loops, metrics and loggers in a real Ray; the workers alone are stand-ins."""

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from engines import reported as term
from engines.sglang import SGLANG
from trainers.protocol import StackFacts
from trainers.verl import settings as verl
from trainers.workload import Workload
from workflow.config.model import Arm
from workflow.job.place import Place
from workflow.job.ray import RayHead
from workflow.job.rendezvous import TaskSetup

from ... import patience
from ...attempts import read_lines
from .test_steps import history_of
from .tiers import RELEASES

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = Path(__file__).with_name("standin")
REWARDS = [{"name": "phi4", "weight": 1.0}, {"name": "length", "weight": 0.5, "options": {"target": 20}}]
WORKLOAD = {
    "model": {"source": "builtin:tiny-qwen2"}, "data": {"source": "builtin:arithmetic", "rows": 32}, "rewards": REWARDS,
    "steps": 3, "batch_size": 8, "num_generations": 4, "micro_batch_size": 4, "max_prompt_length": 64,
    "max_response_length": 24, "save_steps": 100, "gpus_per_node": 2,
}  # fmt: skip

OPTIONS = {
    "0.4.1": {},
    # Each unit is a process that imports torch.
    "0.9.1": {"transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}},
}
# With two GPUs these are all that the plan asks for, and with one fewer the job does not start.
LEAST_CPUS = {"0.4.1": 1 + 2, "0.9.1": 1 + 1 + 3 * 2}


class Bench:
    """One version's Pythons, inputs and Ray cluster, in a folder of its own; attempts are forks of the `warm` one."""

    def __init__(self, version, python, warm, folder):
        self.version, self.python, self.warm, self.folder = version, python, warm, folder
        self.inputs = folder / "inputs" / "inputs.json"
        self.ray = {}
        self.jobs = {}

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "RAY"))}
        return {
            **kept,
            "PYTHONPATH": f"{ROOT}:{STAND_IN}",
            "STANDIN_FOLDER": str(self.folder),
            "OMP_NUM_THREADS": "2",
            # Ray would start a worker for each CPU before any is asked for; verl's have an environment of their own.
            "RAY_prestart_worker_first_driver": "0",
            "NCCL_DEBUG": "INFO",  # as the arm in `order` has it
            "WANDB_API_KEY": "s3cret" * 7,
        }

    def make_inputs(self):
        request = {
            "data": {**Workload.model_validate(WORKLOAD).data.model_dump(), "rows": 32},
            "model": {"source": "builtin:tiny-qwen2", "revision": None, "seed": 0},
            "max_prompt_length": 64,
            "max_response_length": 24,
        }
        (self.folder / "request.json").write_text(json.dumps(request))
        request_file = self.folder / "request.json"
        done = self.warm.run("-m", "node.inputs", "--request", request_file, "--out", self.inputs.parent)
        assert done.returncode == 0, done.stderr

    def order(self, run_id, number, **words):
        """An attempt as the launcher orders it."""
        workload = Workload.model_validate({**WORKLOAD, **words})
        stack = StackFacts("verl", "sglang", "cuda", self.version, "0" * 12)
        arm = Arm(trainer="verl", engine="sglang", stack="verl-sglang", options=OPTIONS[self.version])
        run = self.folder / "runs" / run_id
        folder = run / "attempts" / str(number)
        folder.mkdir(parents=True)
        spec = {
            "experiment": "tests",
            "run_id": run_id,
            "stack": arm.stack,
            "workload": workload.model_dump(mode="json"),
            "trainer_args": (args := verl.trainer_args(arm, workload, 0, stack)),
            "least_cpus": verl.least_cpus(args, workload),
            "fingerprint": "ab" * 32,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        attempt = {
            "attempt": number, "run_id": run_id, "fingerprint": "ab" * 32, "spec": str(folder / "spec.json"),
            "inputs": str(self.inputs), "attempt_dir": str(folder), "checkpoint_dir": str(run / "checkpoints"),
            "cpus": 2, "env": {"NCCL_DEBUG": "INFO"},
        }  # fmt: skip
        (folder / "attempt.json").write_text(json.dumps(attempt))
        return folder

    def start(self, folder):
        program = ("-m", "trainers.verl.driver.train", folder / "attempt.json")
        self.jobs[folder] = self.warm.start(*program, env={**self.environment(), **self.ray}, joined=True)
        return self.jobs[folder]

    def log(self, folder):
        """What an attempt that has ended printed."""
        return self.jobs[folder].communicate()[0]

    def finish(self, folder):
        return ended(self.start(folder))


@contextmanager
def ray_of(bench):
    setup = TaskSetup(
        place=Place.from_environment({"SLURM_MEM_PER_NODE": "320"}, cpus=LEAST_CPUS[bench.version]),
        folder=bench.folder / "nodes",
        python=bench.python,
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
def bench(request, verl_python, warm_verl, tmp_path_factory):
    made = Bench(request.param, verl_python(request.param), warm_verl(request.param), tmp_path_factory.mktemp("verl"))
    made.make_inputs()
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


def sampled(bench, test_steps):
    return {"samples": 2, "test_steps": test_steps} if bench.version == "0.4.1" else {}


def test_a_run_in_two_lives(bench):
    # The other stand-in has no engine for a validation: test_v1_loop.py has samples there.
    first = bench.order("two-lives", 1, steps=200, **sampled(bench, 200))
    job = bench.start(first)
    wait_for(lambda: len(lines_of(first)) >= 2, job)
    assert job.poll() is None, bench.log(first)
    os.kill(job.pid, signal.SIGUSR1)
    os.kill(job.pid, signal.SIGTERM)
    assert ended(job) == 75, bench.log(first)
    before = lines_of(first)
    last = before[-1]["step"]
    assert [line["step"] for line in before] == list(range(1, last + 1))
    assert f"stopped: after step {last} of 200, with a checkpoint" in bench.log(first)
    checkpoints = bench.folder / "runs" / "two-lives" / "checkpoints"
    assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == str(last)
    assert not (first / "done.json").exists()

    # What an attempt leaves that was killed as it saved: the next one must see through it.
    (checkpoints / f"global_step_{last + 1}" / "actor").mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("")
    second = bench.order("two-lives", 2, steps=last + 4, save_steps=1, **sampled(bench, last + 4))
    (second / "hold").touch()
    job = bench.start(second)
    wait_for(lambda: len(lines_of(second)) >= 1, job)
    (tracker,) = (
        process
        for process in psutil.process_iter(["name", "environ"])
        if process.info["name"] == "wandb-core" and (process.info["environ"] or {}).get("WANDB_DIR") == str(second)
    )
    tracker.kill()
    wait_for(lambda: patience.has_ended(tracker), job)
    (second / "hold").unlink()
    assert ended(job) == 0, bench.log(second)
    after = lines_of(second)
    assert [line["step"] for line in after] == list(range(last + 1, last + 5))
    assert [line["resumed"] for line in before + after] == [False] * last + [True] + [False] * 3
    assert "wandb has ended" in bench.log(second)
    done = json.loads((second / "done.json").read_text())
    assert (done["first_step"], done["last_step"], done["steps"]) == (last + 1, last + 4, 4)
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
    if sampled(bench, 1):
        taken = [read_lines(folder / "samples.jsonl") for folder in (first, second)]
        assert [[line["step"] for line in lines] for lines in taken] == [[0], [last + 4]]
        for (line,) in taken:
            assert line["problem"] is None and [one["row"] for one in line["samples"]] == [0, 1]
            assert all(list(one["rewards"]) == ["phi4", "length"] for one in line["samples"])
    for line in before + after:
        responses = line["samples"]["response_length"]
        assert len(responses) == 8
        assert sum(responses) == line["scalars"]["response_tokens"]
        assert line["scalars"]["timing_s/step"] > line["scalars"]["timing_s/gen"] > 0.3
        # The other stand-in has no log-probabilities: test_v1_loop.py compares them.
        assert bench.version != "0.4.1" or 0 < line["scalars"]["mismatch/abs"] < 1
        # Random responses have no thought: -1, or -0.5 where one was cut; 0.5 at most for its length.
        assert -1.0 <= line["scalars"]["critic/score/min"] <= line["scalars"]["critic/score/max"] <= 0.5
    for path in (bench.folder / "runs").rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
    assert "s3cret" not in bench.log(first) + bench.log(second)
    (row, *_) = [row for row in history_of(first) if "timing_s/step" in row]
    assert row["timing_s/step"] == before[0]["scalars"]["timing_s/step"]


@pytest.mark.full("verl's own way to forget checkpoints")
@pytest.mark.parametrize("bench", ["0.4.1"], indirect=True)
def test_a_run_that_is_done_removes_what_verl_leaves(bench):
    """Of older checkpoints verl leaves half of the folder."""
    assert bench.finish(bench.order("done", 1, steps=4, save_steps=1)) == 0
    checkpoints = bench.folder / "runs" / "done" / "checkpoints"
    assert len(list(checkpoints.iterdir())) > 3
    second = bench.order("done", 2, steps=4)
    assert bench.finish(second) == 0, bench.log(second)
    done = json.loads((second / "done.json").read_text())
    assert (done["first_step"], done["last_step"], done["steps"]) == (None, 4, 0)
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        *("global_step_3", "global_step_4", "latest_checkpointed_iteration.txt"),
    ]


@pytest.mark.full("verl's own code")
@pytest.mark.parametrize("bench", ["0.4.1"], indirect=True)
def test_fewer_cpus_than_the_actors_reserve_are_refused(bench):
    folder = bench.order("few", 1, gpus_per_node=3)
    assert bench.finish(folder) == 2, bench.log(folder)
    assert "verl reserves 4 CPUs in Ray, and the job's nodes have 3" in bench.log(folder).splitlines()[-1]


@pytest.mark.full("verl's own code")
@pytest.mark.parametrize("bench", ["0.4.1"], indirect=True)
def test_what_fails_in_ray_is_told_in_one_line(bench):
    folder = bench.order("crash", 1)
    (bench.folder / "crash").touch()
    try:
        assert bench.finish(folder) == 1, bench.log(folder)
    finally:
        (bench.folder / "crash").unlink()
    assert bench.log(folder).splitlines()[-1] == "error: RuntimeError: verl failed: RuntimeError: made to crash"
    assert "in generate_sequences" in bench.log(folder)  # where it was
