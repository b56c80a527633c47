"""Engines alone that have processes of their own: their shards, and the end of one of them."""

import contextlib
import json

import psutil
import pytest

from trainers.replay.lengths import draw_lengths

from ... import patience
from ...attempts import EAGER, SGLANG, VLLM, job_environment, read_lines
from .test_replay import ROOT, VLLM_ENGINE, attempt_of, planned

pytestmark = pytest.mark.full("several engines replay")


def started(python, attempt, text):
    """A program in a file, whose processes import it again; all have a mark in their environment."""
    program = attempt.parent / "program.py"
    program.write_text(text)
    mark = {"PYTHONPATH": str(ROOT), "REPLAY_MARK": str(attempt)}
    environment = job_environment(VLLM_CPU_KVCACHE_SPACE="1", **mark, **EAGER)
    return patience.run([str(python), str(program), str(attempt)], 300, cwd=ROOT, env=environment)


def left_over(attempt):
    """The command lines of processes with the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("REPLAY_MARK") == str(attempt):
                found.append(" ".join(process.cmdline()))
    return found


TWO = """
import os, sys
from engines.vllm import replay as engine
from node.attempt import exit_code
from trainers.replay import driver
build, cpus = engine.build, sorted(os.sched_getaffinity(0))
def two(*given):
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cpus[0]}|{cpus[-1]}"  # on a CPU each shard needs its own
    return build(*given)
engine.build = two
if __name__ == "__main__":
    sys.exit(exit_code(driver.replay))
"""


def test_one_engine_of_two_processes_writes_what_the_model_writes(stack_python, made_inputs, tmp_path):
    """vLLM starts its shards itself, and has loaded the weights itself: none are sent."""
    (run,) = planned("vllm", engine=VLLM_ENGINE).runs.values()
    spec = {**run.spec, "trainer_args": {**run.spec["trainer_args"], "tensor_parallel": 2}}
    attempt = attempt_of(spec, tmp_path, made_inputs)
    told = started(stack_python(VLLM), attempt, TWO)
    assert told.returncode == 0, told.stderr + told.stdout
    engine = json.loads((attempt.parent / "done.json").read_text())["resolved"]["engine"]
    assert engine["tensor_parallel_size"] == 2 and engine["greedy_equal"] == 1.0
    lines = read_lines(attempt.parent / "metrics.jsonl")
    assert [line["samples"]["response_length"] for line in lines] == [
        draw_lengths(5, 2, 12, 8, f"step {step}") for step in (1, 2, 3)
    ]
    assert set(lines[0]["phases"]) == {"step", "step/generate"}
    assert not left_over(attempt), "an orphan"


DIES = """
import os, signal, sys
from pathlib import Path
from engines.sglang import replay as engine
from node.attempt import exit_code
from node.hardware import process_tree
from trainers.replay import driver
build = engine.build
def doomed(*given):
    made = build(*given)
    generate, steps = made.generate, []
    def kill(prompts, lengths, greedy=False):
        steps.append(greedy)
        if steps.count(False) == 2:
            pids = [one for one in process_tree() if Path(f"/proc/{one}/cmdline").read_text().startswith("sglang::")]
            os.kill(pids[0], signal.SIGKILL)
        return generate(prompts, lengths, greedy)
    made.generate = kill
    return made
engine.build = doomed
if __name__ == "__main__":
    sys.exit(exit_code(driver.replay))
"""


def test_a_scheduler_that_dies_in_a_step_is_named(stack_python, made_inputs, tmp_path):
    (run,) = planned("sglang", engine={"max_running_requests": 4}).runs.values()
    attempt = attempt_of(run.spec, tmp_path, made_inputs)
    told = started(stack_python(SGLANG), attempt, DIES)
    said = told.stderr + told.stdout
    assert told.returncode == 1
    assert "the engine failed in step 2: EngineEnded: SGLang's server ended with exit code 1" in said, said
    assert "error: a process of SGLang's server was killed by SIGKILL" in said, said
    assert len(read_lines(attempt.parent / "metrics.jsonl")) == 1 and not (attempt.parent / "done.json").exists()
    assert not left_over(attempt), "an orphan"
