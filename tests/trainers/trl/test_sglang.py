"""A real training with SGLang on this CPU, in two lives: stopped by a signal, then resumed to its end."""

import json
import os
import signal
from pathlib import Path

from engines.reported import TERMS
from node.seeds import engine_seed

from ... import patience
from ...attempts import EAGER, SGLANG, SGLANG_ARGS, read_lines, reported_terms, signal_job, warm, write_attempt
from .test_trl_grpo import COMMON, PREPARE, check_tree

PROBE = Path(__file__).with_name("probe_sglang.py")
# Room for 80 tokens, of which a prompt takes more than 16: no response reaches 64 tokens.
TINY_CACHE = {"use_sglang": True, "sglang_max_total_tokens": 80, "max_completion_length": 64}
NOISE = ("Traceback", "leaked", "Warning", "site-packages/sglang", "shards")


def start(python, attempt, out, *arguments):
    return warm(python, **EAGER).start(PROBE, attempt, out, *arguments, joined=True)


def test_sglang_trains_on_the_trainers_weights_is_stopped_and_goes_on(stack_python, made_inputs, tmp_path):
    python, run = stack_python(SGLANG), tmp_path / "sglang-s0"
    first = write_attempt(run, made_inputs, **TINY_CACHE, max_steps=500, save_strategy="no")
    job = start(python, first, tmp_path / "first.jsonl")
    patience.until(lambda: len(read_lines(first.parent / "metrics.jsonl")) >= 2 or job.poll() is not None, job.pid)
    assert job.poll() is None, job.communicate()[0]
    family = signal_job(job.pid, signal.SIGTERM)
    said, _ = patience.ended(job, 300)
    assert job.returncode == 75, said
    assert "stopped: after step" in said
    before = read_lines(first.parent / "metrics.jsonl")
    last = before[-1]["step"]
    assert (run / "checkpoints" / "abababababab" / f"checkpoint-{last}").is_dir()
    patience.until(lambda: all(map(patience.has_ended, family)), os.getpid(), 20)
    shortened = [int(line["scalars"]["shortened_responses"]) for line in before]
    assert all(0 < count <= 8 for count in shortened)
    assert max(max(line["samples"]["response_length"]) for line in before) < 64
    assert f"SGLang shortened {shortened[0]} of 8 responses: its cache has room for 80 tokens" in said
    # `generate` ends when the token ids are there; what is read then is a part of its own.
    slow = before[0]["phases"]
    assert slow[f"{PREPARE}/generate"] >= 1 and slow[f"{PREPARE}/extract"] >= 2

    second = write_attempt(run, made_inputs, 2, **SGLANG_ARGS, max_steps=last + 4)
    job = start(python, second, tmp_path / "second.jsonl", last + 2)
    told, _ = patience.ended(job, 300)
    assert job.returncode == 0, told
    after = read_lines(second.parent / "metrics.jsonl")
    assert [line["step"] for line in before + after] == list(range(1, last + 5))
    assert [line["resumed"] for line in after] == [True, False, False, False]
    for line in before + after:
        check_tree(line["phases"])
        # The probe's own pass for log-probabilities, which TRL leaves out, is timed as TRL's would be.
        synced = set() if line["step"] == last + 3 else {f"{PREPARE}/sync_weights"}
        assert set(line["phases"]) == COMMON | synced | {f"{PREPARE}/extract", f"{PREPARE}/old_log_prob"}
        distance, divergence = (line["scalars"][f"mismatch/{name}"] for name in ("abs", "k3"))
        assert distance > 1e-3 if line["step"] == last + 3 else 0 < distance < 1e-3 and 0 <= divergence < 1e-5
    for line in after:
        assert line["scalars"]["prompt_tokens"] + line["scalars"]["response_tokens"] <= 8 * 64
        assert max(line["samples"]["response_length"]) <= 16 and "shortened_responses" not in line["scalars"]
    for words in (said, told):
        assert not [word for word in NOISE if word in words], words

    looks = read_lines(tmp_path / "first.jsonl") + read_lines(tmp_path / "second.jsonl")
    *steps, end = looks
    # Nothing of SGLang's stays in /dev/shm.
    assert all(one["shared"] and all(text.endswith("(deleted)") for text in one["shared"]) for one in steps)
    assert [one["step"] for one in steps][: last + 4] == list(range(last + 4))
    for one in steps:
        assert one["repeated"], "TRL passes each prompt num_generations times"
        if one["step"] == last + 2:
            # A sync that is left out is seen: else the checks below would check nothing.
            assert one["gap"] > 1e-2
        else:
            assert one["gap"] < 1e-4  # nats
            assert one["greedy"], one
    assert {one["seed"] for one in steps} == {0, engine_seed(0, last)}
    assert len({tuple(one["first"]) for one in steps}) == len(steps)
    assert "SGLang refuses generate: 401" in end["stranger"]
    assert end["without"] == [401, 401, 401, 401, 200]
    assert "SGLang's server ended with exit code 1" in end["killed"]
    assert "error: a process of SGLang's server was killed by SIGKILL" in end["killed"]
    assert (second.parent / "server.log").exists()

    done = json.loads((second.parent / "done.json").read_text())
    assert (done["first_step"], done["last_step"], done["versions"]["sglang"]) == (last + 1, last + 4, "0.5.23")
    engine = done["resolved"]["engine"]
    assert engine | {"name": "sglang", "dtype": "float32", "attention_backend": "torch_native"} == engine
    terms = reported_terms(done)
    assert set(terms) == set(TERMS) and (terms["CUDA graphs"], terms["attention kernel"]) == ("off", "torch_native")
    assert set(engine["stand_ins"]) == {"sgl_kernel", "torchvision", "jsonschema"}
    assert done["hardware"]["threads"] == 2
