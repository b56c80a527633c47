"""A real training with SGLang on this CPU, which is stopped by a signal; in the full tier it is resumed to its end."""

import json
import os
import signal
from pathlib import Path

import pytest

from engines import engine_named
from engines.reported import TERMS
from node.seeds import engine_seed

from ... import patience
from ...attempts import EAGER, SGLANG, SGLANG_ARGS, read_lines, reported_terms, run_job, signal_job, warm, write_attempt
from .test_trl_grpo import COMMON, PREPARE, check_tree

PROBE = Path(__file__).with_name("probe_sglang.py")
# Room for 32 tokens, of which a prompt takes more than 8: no response reaches 24 tokens.
TINY_CACHE = {"use_sglang": True, "sglang_max_total_tokens": 32, "max_completion_length": 24}
STALE = 3
"""The step that samples with old weights: the driver would have synced them."""
PARTS = {f"{PREPARE}/extract", f"{PREPARE}/sync_weights"}
NOISE = ("Traceback", "leaked", "Warning", "site-packages/sglang", "shards")


@pytest.fixture(scope="module")
def stopped(stack_python, made_inputs, tmp_path_factory):
    """The run's folder, what its first life printed, and what SGLang was when it ended."""
    run = tmp_path_factory.mktemp("runs") / "sglang-s0"
    attempt, out = write_attempt(run, made_inputs, **TINY_CACHE, max_steps=500, save_strategy="no"), run / "probe.json"
    job = warm(stack_python(SGLANG), **EAGER).start(PROBE, attempt, out, STALE - 1, joined=True)
    metrics = attempt.parent / "metrics.jsonl"
    patience.until(lambda: len(read_lines(metrics)) > STALE or job.poll() is not None, job.pid)
    assert job.poll() is None, job.communicate()[0]
    family = signal_job(job.pid, signal.SIGTERM)
    said, _ = patience.ended(job, 300)
    assert job.returncode == 75, said
    patience.until(lambda: all(map(patience.has_ended, family)), os.getpid(), 20)
    return run, said, json.loads(out.read_text())


def test_sglang_trains_on_the_trainers_weights_until_it_is_stopped(stopped):
    run, said, end = stopped
    lines = read_lines(run / "attempts" / "1" / "metrics.jsonl")
    last = lines[-1]["step"]
    assert f"stopped: after step {last} of 500" in said and not [word for word in NOISE if word in said], said
    assert (run / "checkpoints" / "abababababab" / f"checkpoint-{last}").is_dir()
    assert [line["step"] for line in lines] == list(range(1, last + 1))
    for line in lines:
        check_tree(line["phases"])
        assert set(line["phases"]) == COMMON | (PARTS - {f"{PREPARE}/sync_weights"} if line["step"] == STALE else PARTS)
        distance, divergence = (line["scalars"][f"mismatch/{name}"] for name in ("abs", "k3"))
        assert distance > 1e-3 if line["step"] == STALE else 0 < distance < 1e-3 and 0 <= divergence < 1e-5
    # Each step has completions of its own.
    assert len({line["scalars"]["train/entropy"] for line in lines}) == last
    shortened = [int(line["scalars"]["shortened_responses"]) for line in lines]
    assert all(0 < count <= 8 for count in shortened)
    assert max(max(line["samples"]["response_length"]) for line in lines) < 24
    assert f"SGLang shortened {shortened[0]} of 8 responses: its cache has room for 32 tokens" in said
    # `generate` ends when the token ids are there; what is read then is a part of its own.
    slow = lines[0]["phases"]
    assert slow[f"{PREPARE}/generate"] >= 1 and slow[f"{PREPARE}/extract"] >= 2

    # Nothing of SGLang's stays in /dev/shm.
    assert end["shared"] and all(text.endswith("(deleted)") for text in end["shared"])
    assert end["stranger"][0] is False and "SGLang refuses generate: 401" in end["stranger"][1]
    assert end["without"] == [401, 401, 401, 401, 200]
    assert end["killed"][0] is True and "SGLang's server ended with exit code 1" in end["killed"][1]
    assert "error: a process of SGLang's server was killed by SIGKILL" in end["killed"][1]
    assert (run / "attempts" / "1" / "server.log").exists()
    expected = {"name": "sglang", "dtype": "float32", "attention_backend": "torch_native", "random_seed": 0}
    assert end["settings"].items() >= expected.items()
    assert set(end["settings"]["stand_ins"]) == {"sgl_kernel", "torchvision", "jsonschema"}
    terms = engine_named("sglang").reported(end["settings"])
    assert set(terms) == set(TERMS) and (terms["CUDA graphs"], terms["attention kernel"]) == ("off", "torch_native")


@pytest.mark.full("another start of SGLang; tests/slurm/test_training.py finishes such a run")
def test_its_next_life_goes_on_to_the_end_with_seeds_of_its_own(stopped, stack_python, made_inputs):
    run, _, _ = stopped
    last = read_lines(run / "attempts" / "1" / "metrics.jsonl")[-1]["step"]
    attempt = write_attempt(run, made_inputs, 2, **SGLANG_ARGS, max_steps=last + 2)
    done = run_job(stack_python(SGLANG), "trainers.trl.driver.train", attempt, **EAGER)
    assert done.returncode == 0, done.stderr
    assert not [word for word in NOISE if word in done.stdout + done.stderr]
    lines = read_lines(attempt.parent / "metrics.jsonl")
    assert [(line["step"], line["resumed"]) for line in lines] == [(last + 1, True), (last + 2, False)]
    for line in lines:
        assert set(line["phases"]) == COMMON | PARTS and 0 < line["scalars"]["mismatch/abs"] < 1e-3
        assert max(line["samples"]["response_length"]) <= 16 and "shortened_responses" not in line["scalars"]
    told = json.loads((attempt.parent / "done.json").read_text())
    assert (told["first_step"], told["last_step"], told["versions"]["sglang"]) == (last + 1, last + 2, "0.5.23")
    assert told["resolved"]["engine"]["random_seed"] == engine_seed(0, last)
    assert set(reported_terms(told)) == set(TERMS) and told["hardware"]["threads"] == 2
