"""TRL in two processes that meet by gloo, with DDP and FSDP2: one log, the whole batch, one stop, one checkpoint."""

import functools
import json
import re
import signal
import subprocess

import psutil
import pytest

from node.hardware import free_port

from ... import patience
from ...attempts import ROOT, TRANSFORMERS, job_environment, read_lines, warm, write_attempt
from .test_trl_grpo import COMMON, OWN_NAMES, PREPARE, check_tree, with_a_model

pytestmark = [pytest.mark.full("trainings of two processes"), pytest.mark.promise("a-trainer-of-several")]

DRIVEN = {"ddp": "trainers.trl.driver.train", "fsdp": "tests.trainers.trl.sharded_on_cpu"}
LEARNED = ("loss", "reward", "kl", "grad_norm")
STEPS = 200  # more than there is time for before it is told to stop
WORDS = {"samples": 3, "temperature": 1.0, "top_p": 1.0, "max_response_length": 16}


def start(python, folder, *command, forks=True):
    """Two processes of this node; without `forks` they import everything themselves, as on a cluster."""
    place = ["--nodes=1", "--node=0", "--each=2", f"--at=127.0.0.1:{free_port()}", f"--report={folder / 'told.json'}"]
    program = ["-m", "node.ranks", *place, *command]
    if forks:
        return warm(python).start(*program, forks=True, joined=True)
    return subprocess.Popen(
        [str(python), *program],
        cwd=ROOT,
        env=job_environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def lives(stack_python, made_inputs, tmp_path_factory):
    """By how the model is spread: one run of two lives."""
    python = stack_python(TRANSFORMERS)
    return functools.cache(
        lambda spread: trained(python, tmp_path_factory.mktemp(spread) / "two-s0", made_inputs, spread)
    )


@pytest.fixture(scope="module", params=[*DRIVEN])
def two_lives(lives, request):
    return lives(request.param)


def trained(python, folder, inputs, spread):
    """A run that is stopped by a signal to its second process alone, then trained to its end in another life."""
    args = with_a_model(inputs) | ({"fsdp": True} if spread == "fsdp" else {})
    first = write_attempt(folder, inputs, 1, words=WORDS, max_steps=STEPS, **args)
    job = start(python, folder, "-m", DRIVEN[spread], str(first))
    patience.until(lambda: len(read_lines(first.parent / "metrics.jsonl")) >= 2 or job.poll() is not None, job.pid)
    _, second_rank = sorted(psutil.Process(job.pid).children(), key=lambda one: (one.create_time(), one.pid))
    second_rank.send_signal(signal.SIGTERM)
    said, _ = patience.ended(job, 300)
    told = {"code": job.returncode, "said": said, "lines": read_lines(first.parent / "metrics.jsonl"), "folder": folder}
    told["died"] = (folder / "told.json").exists()
    assert told["lines"], said
    last = told["lines"][-1]["step"] + 2
    second = write_attempt(folder, inputs, 2, words=WORDS, max_steps=last, **args)
    job = start(python, folder, "-m", DRIVEN[spread], str(second), forks=spread == "fsdp")
    again, _ = patience.ended(job, 300)
    return {**told, "code_again": job.returncode, "said_again": again, "last": last}


def test_one_log_of_the_whole_batch(two_lives):
    """Timers are means over both processes, with the slowest beside; each scores its own part."""
    lines, tokens = two_lives["lines"], 0
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        phases, scalars, responses = line["phases"], line["scalars"], line["samples"]["response_length"]
        assert len(responses) == 16, "4 a pass, 2 passes, 2 processes"
        assert sum(responses) == scalars["response_tokens"]
        assert scalars["train/completions/mean_length"] == pytest.approx(sum(responses) / 16)
        tokens += scalars["prompt_tokens"] + scalars["response_tokens"]
        assert scalars["train/num_tokens"] == tokens
        assert scalars["train/rewards/liked/truncated"] == 16, "8 texts in each process, all too long"
        assert scalars["train/rewards/liked/failed"] == 0 and scalars["train/rewards/liked/std"] > 1e-3
        assert set(phases) == COMMON | {f"{PREPARE}/{name}" for name in ("wait", *(f"rewards/{n}" for n in OWN_NAMES))}
        check_tree(phases)
        for path, mean in phases.items():
            slowest, apart = scalars[f"slowest_rank_s/{path}"], scalars[f"between_ranks_s/{path}"]
            assert slowest == pytest.approx(mean + apart / 2, abs=1e-6), "of two the mean lies in the middle"
        assert scalars["slowest_rank"] in (0, 1)
    # What the other process says may stand on the same line.
    assert re.search(r"step 1/\d+ .* s in ", two_lives["said"])
    attempt = two_lives["folder"] / "attempts" / "1"
    assert len(list(attempt.glob("wandb/offline-run-*"))) == 1


def test_a_stop_of_one_process_stops_both_after_the_same_step(two_lives):
    last = two_lives["lines"][-1]["step"]
    assert two_lives["code"] == 75, two_lives["said"]
    assert two_lives["said"].count(f"stopped: after step {last} of {STEPS}, with a checkpoint") == 2
    assert not two_lives["died"]


def test_both_go_on_from_the_same_checkpoint(two_lives):
    assert two_lives["code_again"] == 0, two_lives["said_again"]
    folder, stopped = two_lives["folder"] / "attempts" / "2", two_lives["lines"][-1]["step"]
    assert len(re.findall(rf"resuming from step {stopped}\b", two_lives["said_again"])) == 1
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [stopped + 1, stopped + 2]
    assert [line["resumed"] for line in lines] == [True, False]
    assert lines[0]["scalars"]["train/num_tokens"] == two_lives["lines"][-1]["scalars"]["train/num_tokens"] + sum(
        lines[0]["scalars"][f"{what}_tokens"] for what in ("prompt", "response")
    )
    done = json.loads((folder / "done.json").read_text())
    assert (done["first_step"], done["last_step"], done["steps"]) == (stopped + 1, stopped + 2, 2)
    assert done["hardware"]["processes"] == 2 and done["hardware"]["cpus"] == 2
    assert len(done["hardware"]["affinity"]) == done["hardware"]["threads"] == 1
    # As long as under ms-swift: transformers' half-hour would end a training that waits for one process's generation.
    assert done["resolved"]["trainer"]["ddp_timeout"] == 18_000_000
    for number in (stopped + 1, stopped + 2):
        checkpoint = two_lives["folder"] / "checkpoints" / "abababababab" / f"checkpoint-{number}"
        assert len(list(checkpoint.glob("rng_state_*.pth"))) == 2


def test_fsdp_trains_what_ddp_trains_before_and_after_a_resume(lives):
    ddp, fsdp = lives("ddp"), lives("fsdp")
    of_ddp, of_fsdp = (
        {line["step"]: line for life in (1, 2) for line in read_lines(run["folder"] / f"attempts/{life}/metrics.jsonl")}
        for run in (ddp, fsdp)
    )
    # Rounding differs, and what it makes of the weights grows with the steps, of which a slow stop leaves many.
    both = sorted({*of_ddp} & {*of_fsdp})[:6]
    assert len(both) >= 4
    for step in both:
        one, other = of_ddp[step], of_fsdp[step]
        assert one["samples"] == other["samples"]
        of_one, of_other = ([line["scalars"][f"train/{name}"] for name in LEARNED] for line in (one, other))
        assert of_other == pytest.approx(of_one, rel=1e-3, abs=1e-6), (step, LEARNED)
    for run in (ddp, fsdp):
        whole = [*(run["folder"] / "checkpoints").rglob("pytorch_model_fsdp.bin")]
        assert bool(whole) == (run is fsdp), "a model that is not spread has no checkpoint of FSDP's"
        done = json.loads((run["folder"] / "attempts/2/done.json").read_text())
        # TRL's own choice would put the reference onto all GPUs of the node, by each process.
        assert ("device_map" in done["resolved"]["trainer"]["model_init_kwargs"]) == (run is fsdp)
    first, last = ([samples(run, life) for run in (ddp, fsdp)] for life in (1, 2))
    assert first[0][0] == first[1][0] and first[0][0][0] == 1
    assert [one[-1][0] for one in last] == [ddp["last"], fsdp["last"]]
    # Of both processes' prompts, of which each has two in a batch.
    assert [len(texts) for _, texts in first[0]] == [3]


def samples(run, life):
    """After which step, and what was written then."""
    lines = read_lines(run["folder"] / f"attempts/{life}/samples.jsonl")
    assert lines and not any(line["problem"] for line in lines)
    return [(line["step"], [one["completion"] for one in line["samples"]]) for line in lines]
