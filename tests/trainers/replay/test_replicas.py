"""Several engines, and engines of several processes, on this CPU: shares, one log, one end for all."""

import json

import psutil
import pytest

from node.hardware import free_port
from trainers.replay.lengths import draw_lengths, idle_share
from trainers.replay.replicas import Meeting, ReplayRank, isolate_engine

from ... import patience
from ...attempts import EAGER, SGLANG, TRANSFORMERS, VLLM, job_environment, read_lines
from .test_replay import ROOT, VLLM_ENGINE, attempt_of, planned

pytestmark = pytest.mark.full("several engines replay together")


def test_each_engine_sees_its_own_gpus_alone():
    class Told:
        def gather(self, mine):
            return [1000, 1001, 1002, 1003]

    for seen, gpus in ((None, "2,3"), ("0,1,GPU-a,GPU-b", "GPU-a,GPU-b")):
        environment = {"CUDA_VISIBLE_DEVICES": seen} if seen else {}
        isolate_engine(ReplayRank(3, 4, 2), Told(), environment, gpus=True)
        assert environment["CUDA_VISIBLE_DEVICES"] == gpus
        world = {name: environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
        assert world == {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1002"}
    alone = {"CUDA_VISIBLE_DEVICES": "5"}
    isolate_engine(ReplayRank(0, 1, 1), Meeting(ReplayRank(0, 1, 1), {}), alone, gpus=True)
    assert alone == {"CUDA_VISIBLE_DEVICES": "5"}


def started(python, attempt, *program, mark=""):
    """Two processes of this node, and what they said."""
    told = attempt.with_name("died.json")
    place = ["--nodes=1", "--node=0", "--each=2", f"--at=127.0.0.1:{free_port()}", f"--report={told}"]
    command = [str(python), "-m", "node.ranks", *place, *(program or ("-m", "trainers.replay.driver")), str(attempt)]
    environment = job_environment(PYTHONPATH=str(ROOT), VLLM_CPU_KVCACHE_SPACE="1", REPLAY_MARK=mark, **EAGER)
    return patience.run(command, 300, cwd=ROOT, env=environment)


def left_over(mark):
    """The processes with a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("REPLAY_MARK") == mark:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_two_engines_do_a_step_together(stack_python, made_inputs, tmp_path):
    (run,) = planned("transformers", {"steps": 4}).runs.values()
    attempt = attempt_of(run.spec, tmp_path, made_inputs)
    told = started(stack_python(TRANSFORMERS), attempt)
    assert told.returncode == 0, told.stderr + told.stdout
    done = json.loads((attempt.parent / "done.json").read_text())
    assert done["resolved"]["engine"]["replicas"] == 2 and done["resolved"]["engine"]["greedy_equal"] == 1.0
    lines = read_lines(attempt.parent / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        lengths = draw_lengths(5, 2, 12, 8, f"step {line['step']}")
        assert line["samples"]["response_length"] == lengths, "of both, in the order of the whole step"
        assert line["scalars"]["response_tokens"] == sum(lengths)
        assert line["scalars"]["replay/idle_share"] == pytest.approx(idle_share([lengths], 8))
        phases = line["phases"]
        assert set(phases) == {"step", "step/sync_weights", "step/generate", "step/wait"}
        assert sum(phases.values()) <= 2 * phases["step"] + 1e-9
        # Who generates longest waits least.
        assert line["scalars"]["slowest_rank_s/step"] >= line["scalars"]["slowest_rank_s/step/generate"]


LEAVES = """
import os, time
from trainers.replay.replicas import Meeting, ReplayRank
class Late(Meeting):
    def _await(self, keys):
        super()._await(keys)
        time.sleep(0 if rank == 0 else 1)
rank = int(os.environ["RANK"])
meeting = Late(ReplayRank(rank, 2, 1), os.environ)
assert meeting.gather(rank) == [0, 1]
meeting.leave()
"""


def test_the_last_values_reach_a_process_that_reads_them_late(stack_python, tmp_path):
    program = tmp_path / "leaves.py"
    program.write_text(LEAVES)
    told = started(stack_python(TRANSFORMERS), tmp_path / "attempt.json", str(program))
    assert told.returncode == 0, told.stderr


FAILS = """
import os, sys
from engines.transformers.replay import TransformersReplay as Whole
from node.attempt import exit_code
from trainers.replay import driver
made, steps = Whole.generate, []
def fails(self, prompts, lengths, greedy=False):
    steps.append(greedy)
    if rank == "1" and steps.count(False) == 2:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return made(self, prompts, lengths, greedy)
rank, Whole.generate = os.environ["RANK"], fails
sys.exit(exit_code(driver.replay))
"""


def test_an_engine_that_fails_in_a_step_ends_all_by_name(stack_python, made_inputs, tmp_path):
    (run,) = planned("transformers").runs.values()
    attempt = attempt_of(run.spec, tmp_path, made_inputs)
    program = tmp_path / "fails.py"
    program.write_text(FAILS)
    told = started(stack_python(TRANSFORMERS), attempt, str(program), mark=str(tmp_path))
    said = told.stderr + told.stdout
    assert told.returncode == 1 and "the engine failed in step 2: RuntimeError: CUDA error: an illegal" in said
    assert json.loads(attempt.with_name("died.json").read_text())["rank"] == 1
    assert len(read_lines(attempt.parent / "metrics.jsonl")) == 1 and not (attempt.parent / "done.json").exists()
    assert not left_over(str(tmp_path)), "an orphan"


def test_one_engine_of_two_processes_writes_what_the_model_writes(stack_python, made_inputs, tmp_path):
    """vLLM's tensor parallel by gloo, as TRL and verl have it: each process builds its shard and is asked the same."""
    (run,) = planned("vllm", engine=VLLM_ENGINE).runs.values()
    spec = {**run.spec, "trainer_args": {**run.spec["trainer_args"], "tensor_parallel": 2}}
    attempt = attempt_of(spec, tmp_path, made_inputs)
    told = started(stack_python(VLLM), attempt, mark=str(tmp_path))
    assert told.returncode == 0, told.stderr + told.stdout
    engine = json.loads((attempt.parent / "done.json").read_text())["resolved"]["engine"]
    assert engine["tensor_parallel_size"] == 2 and engine["greedy_equal"] == 1.0 and "replicas" not in engine
    lines = read_lines(attempt.parent / "metrics.jsonl")
    assert [line["samples"]["response_length"] for line in lines] == [
        draw_lengths(5, 2, 12, 8, f"step {step}") for step in (1, 2, 3)
    ]
    assert set(lines[0]["phases"]) == {"step", "step/sync_weights", "step/generate"}
    assert not left_over(str(tmp_path)), "an orphan"


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
    program = tmp_path / "dies.py"
    program.write_text(DIES)
    command = [str(stack_python(SGLANG)), str(program), str(attempt)]
    environment = job_environment(PYTHONPATH=str(ROOT), REPLAY_MARK=str(tmp_path))
    told = patience.run(command, 300, cwd=ROOT, env=environment)
    said = told.stderr + told.stdout
    assert told.returncode == 1
    assert "the engine failed in step 2: EngineEnded: SGLang's server ended with exit code 1" in said, said
    assert "error: a process of SGLang's server was killed by SIGKILL" in said, said
    assert len(read_lines(attempt.parent / "metrics.jsonl")) == 1 and not (attempt.parent / "done.json").exists()
    assert not left_over(str(tmp_path)), "an orphan"
