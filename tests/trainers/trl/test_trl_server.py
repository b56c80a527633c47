"""TRL with vLLM's own server beside it, on a CPU: both real, new weights in a file where NCCL would carry them."""

import json
import os

import pytest

from node.seeds import engine_seed
from workflow.job.place import Place
from workflow.job.rendezvous import TaskSetup
from workflow.job.server import ServerHead, ServerSetup, is_healthy

from ... import guarded, patience
from ...attempts import EAGER, ROOT, VLLM, VLLM_ARGS, job_environment, read_lines, run_job, warm, write_attempt
from .test_trl_grpo import COMMON, PREPARE, check_tree

pytestmark = [pytest.mark.full("a server beside a training"), pytest.mark.promise("a-server-beside-the")]

SERVED = {
    **VLLM_ARGS,
    "vllm_mode": "server",
    "vllm_tensor_parallel_size": 1,
    "vllm_importance_sampling_correction": True,
    "vllm_server_args": {"enforce_eager": True, "max_num_seqs": 16},
}


@pytest.fixture(scope="module")
def served(stack_python, made_inputs, tmp_path_factory):
    """A finished attempt of three steps, and how its server answered."""
    folder, python = tmp_path_factory.mktemp("served"), stack_python(VLLM)
    attempt = write_attempt(folder / "vllm-s0", made_inputs, max_steps=3, seed=7, **SERVED)
    setup = TaskSetup(
        place=Place(0, ("here",), 2, 0),
        folder=folder / "life",
        python=python,
        environment=job_environment(PYTHONPATH=str(ROOT), **EAGER),
        cwd=ROOT,
        log=folder / "log",
    )
    told = {"module": "trainers.trl.driver.serve", "gpus": 0, "patience_s": 3600}
    server = ServerSetup(told, setup.environment, folder / "server.log")
    with ServerHead(setup, 1, server) as head:
        head.start(attempt.parent)
        head.wait_for_nodes()
        _, *command = head.command([str(python), "-m", "trainers.trl.driver.train", str(attempt)])
        job = warm(python, **EAGER).start(*command, env={**setup.environment, **head.environment()})
        _, said = patience.ended(job, 300, whom=os.getpid())
        assert job.returncode == 0, said + (folder / "server.log").read_text()
        assert head.poll() is None
        told = head.environment()
        secret = told.get("ROLLOUTBENCH_SERVER_SECRET", "none")
        patience.until(lambda: is_healthy(told["ROLLOUTBENCH_SERVER"], secret), os.getpid(), 60)
        seen = {
            "answered": guarded.answered(told["ROLLOUTBENCH_SERVER"], secret),
            "known": guarded.status(told["ROLLOUTBENCH_SERVER"], "GET", "/server_info", {guarded.HEADER: secret})[0],
            "shown": guarded.command_lines_with(secret) + guarded.files_with(folder, secret),
        }
        assert is_healthy(told["ROLLOUTBENCH_SERVER"], secret)
    return {"attempt": attempt, "log": (folder / "server.log").read_text(), **seen}


def test_nobody_without_the_attempts_secret_uses_the_server_and_nothing_shows_it(served):
    assert served["answered"] == [] and served["known"] == 200
    assert served["shown"] == [] and "s3cret" not in served["log"]


def test_it_trains_with_the_synced_weights(served):
    lines = read_lines(served["attempt"].parent / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert set(line["phases"]) == COMMON | {f"{PREPARE}/sync_weights", f"{PREPARE}/old_log_prob"}
        check_tree(line["phases"])
        assert line["phases"][f"{PREPARE}/generate"] > 0 and line["phases"][f"{PREPARE}/sync_weights"] > 0
        # The engine's and the trainer's log-probabilities of the same tokens: equal weights, equal precision.
        assert line["scalars"]["train/sampling/sampling_logp_difference/max"] < 1e-4
        assert len(line["samples"]["response_length"]) == 8
    # Each step has completions of its own; all may be as long as they are allowed to.
    assert len({line["scalars"]["train/entropy"] for line in lines}) == 3
    assert not list(served["attempt"].parent.glob("*.safetensors"))


def test_what_the_server_is_stands_in_the_record(served):
    done = json.loads((served["attempt"].parent / "done.json").read_text())
    engine = done["resolved"]["engine"]
    expected = {"name": "vllm", "mode": "server", "dtype": "float32", "seed": engine_seed(7, 0), "max_model_len": 64}
    assert engine | expected | {"enforce_eager": True, "max_num_seqs": 16} == engine
    # The other half of the CPUs is the server's.
    assert done["hardware"]["threads"] == len(done["hardware"]["affinity"]) == 1


def test_what_is_not_the_servers_to_choose_is_one_line(stack_python, made_inputs, tmp_path, served):
    """`served` comes first: what it has compiled and cached is not paid for twice."""
    attempt = write_attempt(tmp_path / "vllm-s0", made_inputs, **SERVED | {"vllm_server_args": {"seed": 3}})
    refused = run_job(
        stack_python(VLLM), "trainers.trl.driver.serve", attempt, "--host", "127.0.0.1", "--port", 9, **EAGER
    )
    assert refused.returncode == 2
    assert "error: vllm_server_args.seed follows from the workload" in refused.stderr.splitlines()[-1]
