"""ms-swift with its own `swift rollout` beside it, both real, on a CPU: new weights go by files, not through NCCL."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.hardware import free_port
from node.ranks import SHARE
from trainers.registry import mode_of, tree_for
from workflow.job.place import Place
from workflow.job.rendezvous import TaskSetup
from workflow.job.server import ServerHead, ServerSetup, is_healthy

from ... import guarded, patience
from ...attempts import EAGER, ROOT, inputs_of, job_environment, run_job, warm
from ..trl.test_trl_grpo import COMMON, PREPARE, check_tree
from .runs import AGREE, Run, check_newest_weights, differences, planned
from .test_swift_vllm import STACK, SYNC

pytestmark = [pytest.mark.full("servers beside trainings of ms-swift"), pytest.mark.promise("a-server-beside-the")]

STEPS, STOPPED_AT = 4, 2


@dataclass(frozen=True)
class Beside:
    """A server that answers, and what runs a program of the stack beside it."""

    head: ServerHead
    first: Run  # the run whose life it was started for
    runs: dict[str, Run]
    python: Path
    environment: dict[str, str]
    folder: Path

    @property
    def log(self):
        return (self.folder / "server.log").read_text()

    @property
    def url(self):
        return self.head.environment()["ROLLOUTBENCH_SERVER"]

    @property
    def secret(self):
        return self.head.environment().get("ROLLOUTBENCH_SERVER_SECRET", "none")

    def asked(self, endpoint, method="GET", body=None):
        """What the server answers to its trainer."""
        return guarded.status(self.url, method, endpoint, {guarded.HEADER: self.secret}, body)[1]

    def run(self, *arguments, code=0):
        """What a program says that ends as it should."""
        _, *command = self.head.command([str(self.python), *map(str, arguments)])
        forks = "node.ranks" in arguments
        environment = {**self.environment, **self.head.environment(), **({SHARE: "0,2,2"} if forks else {})}
        job = warm(self.python, **EAGER).start(*command, env=environment, forks=forks)
        out, err = patience.ended(job, 300, whom=os.getpid())
        assert job.returncode == code, (out + err)[-6000:] + self.log
        return out + err

    def train(self, name, number, stop_at=0, in_two=False):
        """A run's next life, with this server, which was started for the first one."""
        place = (
            "--nodes=1",
            "--node=0",
            "--each=2",
            f"--at=127.0.0.1:{free_port()}",
            f"--report={self.folder / 'told'}",
        )
        run, own = self.runs[name], self.first.life(1)
        if not run.life(number).exists():
            run.order(number)
            shutil.copy(own / "server-engine.json", run.life(number))
            (own / "weights").mkdir(exist_ok=True)
            (run.life(number) / "weights").symlink_to(own / "weights")
        words = run.watched(number, stop_at)
        self.run(*(("-m", "node.ranks", *place) if in_two else ()), *words, code=75 if stop_at else 0)
        return run


@contextmanager
def serving(python, folder, name):
    """The server of a run's first life."""
    specs = planned(folder, "server", "ahead", "shares", "adapter")
    inputs = inputs_of(warm(python, **EAGER), folder, specs[name]["workload"])
    runs = {of: Run(folder / of, spec, inputs) for of, spec in specs.items()}
    environment = job_environment(PYTHONPATH=str(ROOT), **EAGER)
    setup = TaskSetup(
        place=Place(0, ("here",), 2, 0),
        folder=folder / "life",
        python=python,
        environment=environment,
        cwd=ROOT,
        log=folder / "log",
    )
    server = ServerSetup(specs[name]["server"], environment, folder / "server.log")
    with ServerHead(setup, 1, server) as head:
        runs[name].order(1)
        head.start(runs[name].life(1))
        head.wait_for_nodes()
        yield Beside(head, runs[name], runs, python, environment, folder)


@pytest.fixture(scope="module")
def beside(stack_python, tmp_path_factory):
    """The server of the first run's first life, which the others use as well."""
    with serving(stack_python(STACK), tmp_path_factory.mktemp("swift-server"), "server") as one:
        yield one


@pytest.fixture(scope="module")
def served(beside):
    """A run that is stopped in its second step and goes on."""
    beside.train("server", 1, STOPPED_AT)
    run = beside.train("server", 2)
    assert beside.head.poll() is None
    patience.until(lambda: is_healthy(beside.url, beside.secret), os.getpid(), 60)
    return run


@pytest.fixture(scope="module")
def ahead(beside):
    """A run whose server generates while it trains."""
    return beside.train("ahead", 1)


def test_it_generates_with_the_newest_weights_in_both_lives(served):
    seen, lines = served.seen(), served.lines(1, 2)
    check_newest_weights(seen, STEPS)
    assert len({json.dumps(line["prompts"]) for line in seen}) == STEPS, "a resumed run goes on with the next prompts"
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert abs(line["scalars"]["train/rollout_correction/kl"]) < AGREE
        assert set(line["phases"]) == COMMON | {SYNC, f"{PREPARE}/old_log_prob", f"{PREPARE}/log_completions"}
        check_tree(line["phases"])
        assert line["phases"][f"{PREPARE}/generate"] > 0 and line["phases"][SYNC] > 0


def test_what_the_server_is_stands_in_the_record(served, beside):
    done = served.done(2)
    told = {"name": "vllm", "mode": "server", "dtype": "float32", "seed": 0, "max_model_len": 80, "max_num_seqs": 8}
    assert done["resolved"]["engine"] | told | {"adapter_only_sync": False} == done["resolved"]["engine"]
    # The other half of the CPUs is the server's.
    assert done["hardware"]["threads"] == len(done["hardware"]["affinity"]) == 1
    assert "s3cret" not in beside.log


def test_a_server_that_generates_ahead_has_steps_and_no_phases(ahead):
    lines, done = ahead.lines(1), ahead.done(1)
    mode = mode_of("swift", "4.6.0", {}, done)
    tree = tree_for("swift", "4.6.0", "vllm", mode)
    assert tree.overlap and [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert set(line["phases"]) == {tree.root}
        beside = {name for name in line["scalars"] if name.startswith("overlapping_s/")}
        assert beside and all(tree.unit_not_summed(name) == "s" for name in beside)
        assert not any(name.endswith("/generate") for name in beside)
        assert len(line["samples"]["response_length"]) == 8 and line["scalars"]["prompt_tokens"] > 0
    # What is learned from was written by weights of one update before; at first there is none.
    seen = list(differences(ahead.seen(), "policy"))
    assert seen[0] < AGREE and max(seen[1:]) > 10 * AGREE


def test_two_processes_that_share_the_model_send_its_newest_weights(beside):
    run = beside.train("shares", 1, in_two=True)
    lines, seen = run.lines(1), [run.seen(rank) for rank in (0, 1)]
    assert len(lines) == STEPS
    for of_rank in seen:
        check_newest_weights(of_rank, STEPS)
    for line, shares in zip(lines, zip(*seen, strict=True), strict=True):
        lengths = [len(ids) for share in shares for ids in share["completions"]]
        assert len(lengths) == 8 and line["samples"]["response_length"] == lengths
        check_tree(line["phases"])


def test_an_adapter_goes_to_the_server_alone_in_both_lives(stack_python, tmp_path):
    """Two engines have it, each with half of the prompts; a resumed run's adapter is no new one."""
    with serving(stack_python(STACK), tmp_path, "adapter") as one:
        assert json.loads(one.asked("/get_world_size/")) == {"world_size": 2}
        one.train("adapter", 1, STOPPED_AT)
        run = one.train("adapter", 2)
    check_newest_weights(run.seen(), STEPS)
    far = list(differences(run.seen(), "initial"))
    assert far[0] < AGREE and min(far[STOPPED_AT:]) > 100 * AGREE
    assert run.done(2)["resolved"]["engine"]["adapter_only_sync"]


def test_nobody_without_the_attempts_secret_uses_the_server(beside, served):
    assert guarded.answered(beside.url, beside.secret) == []
    assert json.loads(beside.asked("/get_world_size/")) == {"world_size": 1} and is_healthy(beside.url, beside.secret)


def test_nothing_shows_the_secret(beside, served, ahead):
    assert guarded.command_lines_with(beside.secret) + guarded.files_with(beside.folder, beside.secret) == []
    left = [path for path in beside.folder.rglob("weights/*/*") if not path.name.startswith("rank-")]
    assert left == [], "new weights stay in no file"


def test_a_port_in_use_is_named_as_the_job_looks_for_it(stack_python, beside):
    """`swift rollout` itself would listen elsewhere, and the job would wait for it in vain."""
    order = beside.first.life(1) / "attempt.json"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_job(
            stack_python(STACK), "trainers.swift.driver.serve", order, "--host", "127.0.0.1", "--port", port, **EAGER
        )
    assert refused.returncode == 2 and f"error: address already in use: port {port}" in refused.stderr


def test_a_server_ends_with_a_worker_whose_call_fails(beside):
    """`swift rollout` itself logs it and lives on, with old weights: the trainer would not hear of it, or wait."""
    with suppress(OSError, http.client.HTTPException):
        beside.asked("/infer/", "POST", json.dumps({"infer_requests": [{"messages": "none"}]}))
    patience.until(beside.head.poll, os.getpid())
    said, code = beside.head.culprit(75)
    assert code == 1 and "server" in said and "Error: " in said
