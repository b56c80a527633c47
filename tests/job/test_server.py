"""A server beside a trainer: it is there before the first step, lives until the last, and is named when it fails."""

import json
import os
import signal
import sys
import time

import pytest

from workflow.job.rendezvous import NoServerError, RendezvousError
from workflow.job.server import ServerHead, ServerSetup, ServerWorker, is_healthy
from workflow.job.torchrun import RanksWorker

from .run_bench import task_setup

pytestmark = pytest.mark.promise("a-server-beside-the")


def setup_of(folder, hosts, rank=0):
    return task_setup(folder, hosts, rank, NO_PROXY="elsewhere")


class Tasks:
    """Rank 0, and the server on its node or on a second one, as a fault makes it."""

    def __init__(self, folder, nodes, fault="", patience_s=30.0, number=1):
        self.attempt = folder / "attempts" / str(number)
        self.attempt.mkdir(parents=True)
        (self.attempt / "attempt.json").write_text(json.dumps({"attempt": number, "attempt_dir": str(self.attempt)}))
        hosts = ("gpu1", "gpu2")[:nodes]
        setup = setup_of(folder, hosts)
        told = {"module": "tests.job.stand_in_server", "gpus": 0, "patience_s": patience_s}
        environment = {**setup.environment, "STAND_IN_SERVER": fault}
        server = ServerSetup(told, environment, folder / "server.log")
        self.head = ServerHead(setup, 1, server)
        self.worker = ServerWorker(setup_of(folder, hosts, 1), server) if nodes > 1 else None

    def start(self):
        self.head.start(self.attempt)
        if self.worker is not None:
            self.worker.join()

    def died(self):
        """What rank 0 says once the server has died."""
        while (died := self.head.poll()) is None:
            if self.worker is not None:
                self.worker.poll()
            time.sleep(0.05)
        return died

    def seen(self):
        return dict(json.loads((self.attempt / "server.json").read_text()))


@pytest.fixture
def made():
    tasks = []
    yield tasks
    for one in tasks:
        one.head.close()
        if one.worker is not None:
            one.worker.close()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_server_that_dies_in_a_step_is_named_and_slurms_signal_does_not_end_it(made, tmp_path, nodes):
    made.append(tasks := Tasks(tmp_path, nodes))
    tasks.start()
    tasks.head.wait_for_nodes()
    told, pid = tasks.head.environment(), tasks.seen()["pid"]
    url, secret = told["ROLLOUTBENCH_SERVER"], told["ROLLOUTBENCH_SERVER_SECRET"]
    assert told["NO_PROXY"] == f"elsewhere,{tasks.seen()['host']}"
    assert told["ROLLOUTBENCH_MEET"].rpartition(":")[0] == ("127.0.0.1" if nodes == 1 else tasks.seen()["host"])
    assert tasks.head.command(["python", "-m", "trainer"]) == ["python", "-m", "trainer"], "one process, as it is"
    for number in (signal.SIGTERM, signal.SIGUSR2):
        os.kill(pid, number)
    assert is_healthy(url, secret) and tasks.head.poll() is None
    os.kill(pid, signal.SIGKILL)
    died = tasks.died()
    name = "rank 0 (gpu1)" if nodes == 1 else "rank 1 (gpu2)"
    assert died.startswith(f"the server on {name} was killed by SIGKILL (see ")
    assert tasks.head.culprit(1) == (died, -signal.SIGKILL), "the trainer lost its connection"
    assert not is_healthy(url, secret)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("fault", "patience_s", "says", "again"),
    [
        ("silent", 1.0, r"the server at http://\S+ did not answer within 1 s \(see .*server.log\)", False),
        ("breaks", 30.0, r"ended with exit code 1: ValueError: the model has no head \(see .*server.log\)", False),
        ("port_taken", 30.0, r"the server on rank . \(gpu.\) found its port in use \(http://", True),
        ("stranger", 30.0, r"another program answers at http://\S+, not this run's server", True),
    ],
)
def test_a_server_that_never_answers_says_why_within_its_patience(
    made, tmp_path, nodes, fault, patience_s, says, again
):
    made.append(tasks := Tasks(tmp_path, nodes, fault, patience_s))
    tasks.start()
    if tasks.worker is not None and fault not in ("silent", "stranger"):
        while tasks.worker.poll() is None:
            time.sleep(0.05)
    with pytest.raises(NoServerError, match=says) as caught:
        tasks.head.wait_for_nodes()
    assert caught.value.again is again


def test_a_node_that_never_comes_is_no_fault_of_the_servers(tmp_path):
    tasks = Tasks(tmp_path, 2)
    tasks.head._deadline = time.monotonic() + 0.5
    with tasks.head, pytest.raises(RendezvousError, match=r"nodes are still missing: rank 1 \(gpu2\)") as caught:
        tasks.head.start(tasks.attempt)
        tasks.head.wait_for_nodes()
    assert not isinstance(caught.value, NoServerError)


def test_the_trainers_processes_on_every_node_know_where_the_server_is(tmp_path):
    """The drivers of TRL and of ms-swift ask for it in each process (`told`), and end without an answer."""
    (tmp_path / "attempt.json").write_text(json.dumps({"attempt": 1, "attempt_dir": str(tmp_path)}))
    setups = [setup_of(tmp_path, ("gpu1", "gpu2", "gpu3"), rank) for rank in range(3)]
    told = {"module": "tests.job.stand_in_server", "gpus": 0, "patience_s": 30.0}
    server = ServerSetup(told, setups[0].environment, tmp_path / "server.log")
    program = "import sys, node.engine_server as of; open(sys.argv[1] + '/url', 'w').write(of.server_address()[0])"
    second = RanksWorker(setups[1], 1, lambda attempt: [sys.executable, "-c", program, str(attempt)], 2)
    with ServerHead(setups[0], 1, server) as head, ServerWorker(setups[2], server) as last, second:
        head.start(tmp_path)
        last.join()
        second.join()
        head.wait_for_nodes()
        until = time.monotonic() + 60
        while not (tmp_path / "url").exists() or not (tmp_path / "url").read_text():
            assert second.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        assert (tmp_path / "url").read_text() == head.environment()["ROLLOUTBENCH_SERVER"]
