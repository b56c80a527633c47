"""Real runs of two to four steps, with both engines."""

import json
import signal
from pathlib import Path

import pytest

from common.contracts import Sample, SamplesLine
from engines.reported import TERMS
from node.exit_codes import UNFIT_NODE, USER_ERROR
from node.seeds import engine_seed

from ... import patience
from ...attempts import (
    EAGER,
    REWARDS,
    TRAIN,
    TRANSFORMERS,
    VLLM,
    VLLM_ARGS,
    read_lines,
    reported_terms,
    reward_model,
    run_job,
    run_python,
    run_warm,
    signal_job,
    warm,
    write_attempt,
)
from ...test_contracts import problems

pytestmark = pytest.mark.promise("data-or-model-that")

PREPARE = "step/training_step/prepare_inputs"
COMMON = {
    "step", "step/training_step", PREPARE, f"{PREPARE}/generate", f"{PREPARE}/ref_log_prob", f"{PREPARE}/rewards",
    f"{PREPARE}/rewards/accuracy", f"{PREPARE}/rewards/format", f"{PREPARE}/rewards/length",
    "step/training_step/compute_loss", "step/training_step/compute_loss/policy_log_prob", "step/training_step/backward",
    "step/optimizer_step",
}  # fmt: skip


def check_tree(phases):
    """Every phase has its parent, and children never take longer than it (1 ms for the clock's own work)."""
    for path, seconds in phases.items():
        assert seconds >= 0
        parent = path.rpartition("/")[0]
        assert not parent or parent in phases
        children = [value for other, value in phases.items() if other.rpartition("/")[0] == path]
        assert sum(children) <= seconds + 1e-3, path


def check_clock(lines):
    """TRL's own clock, which ms-swift has, too, runs within ours and around the phases that ours times within it."""
    apart = []
    for line in lines:
        ours, theirs = line["phases"]["step/training_step"], line["scalars"]["train/step_time"]
        parts = [value for path, value in line["phases"].items() if path.rpartition("/")[0] == "step/training_step"]
        assert sum(parts) - 2e-3 <= theirs <= ours + 2e-3
        apart.append(ours - theirs)
    # Between the two a busy machine may take the core away, but not in every step.
    assert min(apart) < 0.1


def check_finished(attempt, steps):
    """What must hold of any finished attempt; returns its lines and done.json."""
    folder = attempt.parent
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    check_clock(lines)
    for line in lines:
        check_tree(line["phases"])
        responses = line["samples"]["response_length"]
        assert len(responses) == 8
        assert sum(responses) == line["scalars"]["response_tokens"]
        assert line["scalars"]["train/completions/mean_length"] == pytest.approx(sum(responses) / 8)
        tokens = line["scalars"]["prompt_tokens"] + line["scalars"]["response_tokens"]
        before = lines[line["step"] - 2]["scalars"]["train/num_tokens"] if line["step"] > 1 else 0
        assert line["scalars"]["train/num_tokens"] == before + tokens
        assert ("between_steps_s" in line["scalars"]) == (line["step"] > 1)
        assert "train/rewards/accuracy/mean" in line["scalars"]
    done = json.loads((folder / "done.json").read_text())
    assert (done["first_step"], done["last_step"], done["steps"]) == (1, steps, steps)
    assert done["hardware"]["cpus"] == done["hardware"]["threads"] == len(done["hardware"]["affinity"]) == 2
    for path in folder.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
    return lines, done


OWN_CODE = """
def brevity(completions, rows, token_ids, cut_off, *, most):
    assert rows[0]["ground_truth"] and rows[0]["index"] >= 0
    return [_score(text, ids, cut, most) for text, ids, cut in zip(completions, token_ids, cut_off)]

def _score(text, ids, cut, most):
    if len(text) % 2:
        raise ValueError("an odd completion")
    return None if cut and len(ids) < most else 1.0 - len(ids) / most
"""
OWN = {"source": "mine.py", "function": "brevity", "weight": 0.3, "options": {"most": 16}, "code": OWN_CODE}
# As it is written for verl, with a time limit of its own.
VERLS_CODE = """
import signal
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(30)
    assert ground_truth.lstrip("-").isdigit() and extra_info["index"] >= 0
    print("---", solution_str)
    signal.alarm(0)
    return {"score": len(solution_str) % 3, "pred": solution_str}
"""
VERLS = {"source": "verls.py", "function": "compute_score", "weight": 0.1, "options": {}, "code": VERLS_CODE}
USERS = [OWN, VERLS]
WITH_OWN = {"rewards": [*REWARDS, *USERS], "reward_weights": [one["weight"] for one in [*REWARDS, *USERS]]}


def with_a_model(inputs):
    """These, and a reward model for which all texts are too long."""
    model = reward_model(inputs, max_length=24)
    return {"rewards": [*WITH_OWN["rewards"], model], "reward_weights": [*WITH_OWN["reward_weights"], model["weight"]]}


SAMPLED = {"samples": 3, "temperature": 1.0, "top_p": 1.0, "max_response_length": 16}


@pytest.fixture(scope="module")
def transformers_run(stack_python, made_inputs, tmp_path_factory):
    """A finished attempt of two steps with transformers, samples, and beside the others a reward of the user's and a
    reward model."""
    folder = tmp_path_factory.mktemp("runs") / "tf-s0"
    attempt = write_attempt(folder, made_inputs, words=SAMPLED, **with_a_model(made_inputs))
    done = run_job(stack_python(TRANSFORMERS), "trainers.trl.driver.train", attempt)
    assert done.returncode == 0, done.stderr
    assert "step 2/2  " in done.stdout
    assert " s left" in done.stdout
    return attempt


def test_transformers(transformers_run):
    lines, done = check_finished(transformers_run, 2)
    for line in lines:
        own = ("brevity", "compute_score", "liked")
        assert set(line["phases"]) == COMMON | {f"{PREPARE}/rewards/{name}" for name in own}
        assert 0 < line["scalars"]["mismatch/abs"] < 1e-3 and 0 <= line["scalars"]["mismatch/k3"] < 1e-5
    assert done["resolved"]["engine"]["dtype"] == "float32"
    assert set(reported_terms(done)) == set(TERMS) and reported_terms(done)["sequences at once"] == "no limit"
    assert done["resolved"]["trainer"]["max_steps"] == 2
    assert "vllm" not in done["versions"]


def test_a_reward_of_the_users(transformers_run):
    """Its values are logged as TRL's own are; a completion on which it fails is counted, and the run goes on."""
    lines = read_lines(transformers_run.parent / "metrics.jsonl")
    failures = read_lines(transformers_run.parent / "reward_failures.jsonl")
    failed = [line["scalars"]["train/rewards/brevity/failed"] for line in lines]
    assert sum(failed) == len(failures) > 0
    assert "ValueError: an odd completion (mine.py, line 8)" in failures[0]["problem"]
    assert all(len(one["completion"]) % 2 and one["row"]["ground_truth"] for one in failures)
    for line in lines:
        scalars = line["scalars"]
        assert 0 <= scalars["train/rewards/brevity/mean"] <= 1
        assert scalars["train/rewards/brevity/std"] >= 0
        # Where it has no value it adds nothing: of 8 completions so many have one.
        liked = {"name": "liked", "weight": 0.4}
        others = [*REWARDS, liked, {"name": "compute_score", "weight": 0.1}]
        parts = [scalars[f"train/rewards/{one['name']}/mean"] * one["weight"] for one in others]
        rest = scalars["train/reward"] - sum(parts)
        assert (
            -1e-6
            <= rest
            <= 0.3 * scalars["train/rewards/brevity/mean"] * (8 - scalars["train/rewards/brevity/failed"]) / 8 + 1e-6
        )


def test_a_reward_model(transformers_run):
    """It scores every completion in a phase of its own; what it cut is counted, and its content is in done.json."""
    for line in read_lines(transformers_run.parent / "metrics.jsonl"):
        scalars = line["scalars"]
        assert scalars["train/rewards/liked/truncated"] == 8 and scalars["train/rewards/liked/failed"] == 0
        assert scalars["train/rewards/liked/std"] > 1e-3
        assert 0 < line["phases"][f"{PREPARE}/rewards/liked"] < line["phases"][f"{PREPARE}/rewards"]
    done = json.loads((transformers_run.parent / "done.json").read_text())
    assert len(done["inputs"]["reward_models_sha256"]) == 64


def test_samples_of_the_batches_that_it_trains_on(transformers_run):
    lines = read_lines(transformers_run.parent / "samples.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    steps = read_lines(transformers_run.parent / "metrics.jsonl")
    for line, step in zip(lines, steps, strict=True):
        assert problems(SamplesLine, line) == [] and line["problem"] is None
        assert len({one["row"] for one in line["samples"]}) == len({str(one["prompt"]) for one in line["samples"]}) == 2
        assert {one["tokens"] for one in line["samples"]} <= {*step["samples"]["response_length"]}
        for one in line["samples"]:
            assert 0 <= one["tokens"] <= 16 and (one["cut_off"] or one["tokens"] < 16)
            assert list(one["rewards"]) == ["accuracy", "format", "length", "brevity", "compute_score", "liked"]
            assert one["rewards"]["compute_score"] == len(one["completion"]) % 3
            assert one["rewards"]["liked"] is not None
            assert (one["rewards"]["brevity"] is None) == bool(len(one["completion"]) % 2)
            assert problems(Sample, one) == []


def test_wandb_has_the_timings_in_the_row_of_the_step(transformers_run, stack_python):
    files = list(transformers_run.parent.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 1
    done = run_python(stack_python(TRANSFORMERS), "-m", "wandb", "leet", "inspect", "--json", files[0])
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    rows = [row for row in history if "timing_s/step" in row]
    lines = read_lines(transformers_run.parent / "metrics.jsonl")
    assert [row["train/global_step"] for row in rows] == [1, 2]
    for row, line in zip(rows, lines, strict=True):
        told = {key.removeprefix("timing_s/"): row[key] for key in row if key.startswith("timing_s/")}
        assert told == line["phases"]
        assert row["train/reward"] == line["scalars"]["train/reward"]


# Killed without warning when the third step is logged, and its checkpoint is still to be saved.
KILLED = """
import os, signal
from common import retry
append = retry.append_json_line
def killed(path, line):
    append(path, line)
    if line.get("step") == 3:
        os.kill(os.getpid(), signal.SIGKILL)
retry.append_json_line = killed
"""


@pytest.mark.full("a training of TRL")
def test_vllm_goes_on_after_a_kill(stack_python, made_inputs, tmp_path):
    run_folder, steps = tmp_path / "vllm-s0", 5
    args = {**VLLM_ARGS, "max_steps": steps, "vllm_importance_sampling_correction": True}
    first = write_attempt(run_folder, made_inputs, 1, **args)
    died = run_warm(stack_python(VLLM), "-c", KILLED + TRAIN, first, **EAGER)
    before = read_lines(first.parent / "metrics.jsonl")
    assert died.returncode == -signal.SIGKILL and len(before) == 3, died.stderr
    assert not (first.parent / "done.json").exists()

    second = write_attempt(run_folder, made_inputs, 2, **args)
    done = run_job(stack_python(VLLM), "trainers.trl.driver.train", second, **EAGER)
    assert done.returncode == 0, done.stderr
    after = read_lines(second.parent / "metrics.jsonl")
    told = json.loads((second.parent / "done.json").read_text())
    assert told["first_step"] == 3, "the last one with a whole checkpoint is the second"
    assert [line["step"] for line in after] == [3, 4, 5]
    assert [line["resumed"] for line in after] == [True, False, False]
    assert [line["resumed"] for line in before] == [False] * len(before)
    for line in before + after:
        check_tree(line["phases"])
        assert set(line["phases"]) == COMMON | {
            f"{PREPARE}/{name}" for name in ("sync_weights", "extract", "old_log_prob")
        }
        # The engine's and the trainer's log-probabilities of the same tokens: equal weights, equal precision.
        assert line["scalars"]["train/sampling/sampling_logp_difference/max"] < 1e-4
    assert told["resolved"]["engine"]["seed"] == engine_seed(0, told["first_step"] - 1)


# Steps that do nothing but tell their prompts.
TELLING = """
import json, torch
from trl import GRPOTrainer
def step(self, model, inputs, num_items_in_batch=None):
    print("prompts", json.dumps([row["prompt"][-1]["content"] for row in inputs]))
    return torch.tensor(0.0)
GRPOTrainer.training_step = step
"""


@pytest.mark.full("a training of TRL")
def test_a_run_that_resumes_in_a_later_pass_goes_on_in_its_order(stack_python, made_inputs, tmp_path):
    """32 rows are 16 steps: 36 steps pass over them twice, and begin a third time."""

    def prompts(folder, number, steps):
        settings = {"max_steps": steps, "save_steps": 17}
        attempt = write_attempt(tmp_path / folder, made_inputs, number, **settings)
        done = run_warm(stack_python(TRANSFORMERS), "-c", TELLING + TRAIN, attempt)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("prompts ")]

    whole = prompts("whole", 1, 36)
    assert len(set(whole)) > 2 * 16
    assert prompts("resumed", 1, 17) == whole[: len(whole) * 17 // 36]
    assert prompts("resumed", 2, 34) == whole[len(whole) * 17 // 36 : len(whole) * 34 // 36]
    assert prompts("resumed", 3, 36) == whole[len(whole) * 34 // 36 :]


@pytest.mark.promise("a-tracker-that-dies")
@pytest.mark.full("a training of TRL")
def test_a_stop_signal_saves_and_asks_to_be_requeued(stack_python, made_inputs, tmp_path, transformers_run):
    settings = {"max_steps": 500, "save_strategy": "no", **with_a_model(made_inputs)}
    attempt = write_attempt(tmp_path / "stopped", made_inputs, **settings)
    job = warm(stack_python(TRANSFORMERS)).start("-m", "trainers.trl.driver.train", attempt, joined=True)
    patience.until(lambda: len(read_lines(attempt.parent / "metrics.jsonl")) >= 2 or job.poll() is not None, job.pid)
    signal_job(job.pid, signal.SIGTERM)
    said, _ = patience.ended(job, 300)
    assert job.returncode == 75, said
    assert "stopped: after step" in said
    lines = read_lines(attempt.parent / "metrics.jsonl")
    assert not (attempt.parent / "done.json").exists()
    # The other run took samples before either step, and learned the same.
    for line, sampled in zip(lines, read_lines(transformers_run.parent / "metrics.jsonl"), strict=False):
        assert line["samples"] == sampled["samples"]
        names = ("train/reward", "train/loss", "train/grad_norm", "train/rewards/brevity/failed")
        assert [line["scalars"][name] for name in names] == [pytest.approx(sampled["scalars"][name]) for name in names]
    last = lines[-1]["step"]
    assert (tmp_path / "stopped" / "checkpoints" / "abababababab" / f"checkpoint-{last}").is_dir()
    folders = list((attempt.parent / "wandb").glob("offline-run-*"))
    assert "wandb has ended" in said or "wandb is lost" in said
    assert len({folder.name.split("-")[-1] for folder in folders}) == 1, "it is one run all the same"

    # Its next life has nothing left to do, if the plan asks for no more steps than were done.
    again = write_attempt(tmp_path / "stopped", made_inputs, 2, max_steps=last, save_strategy="no")
    done = run_job(stack_python(TRANSFORMERS), "trainers.trl.driver.train", again)
    assert done.returncode == 0, done.stderr
    told = json.loads((again.parent / "done.json").read_text())
    assert (told["first_step"], told["last_step"], told["steps"]) == (last + 1, last, 0)


# One process tries many orders, since importing the libraries takes longer than refusing.
REFUSALS = """
import contextlib, io, json, sys
from trainers.trl.driver import train as trl_grpo
told = {}
for name, attempt in json.load(sys.stdin).items():
    sys.argv, said = ["trl_grpo", attempt], io.StringIO()
    with contextlib.redirect_stderr(said):
        told[name] = [trl_grpo.exit_code(trl_grpo.train), said.getvalue()]
print("\\n" + json.dumps(told))
"""


def test_mistakes_are_one_line(stack_python, made_inputs, tmp_path):
    def order(name, asked=None, inputs=made_inputs, **changes):
        path = write_attempt(tmp_path / name, inputs, **changes)
        path.write_text(json.dumps(json.loads(path.read_text()) | (asked or {})))
        return str(path)

    def of_inputs(name, **changed):
        """The attempt whose inputs.json has, with paths that hold from elsewhere, other entries."""
        inputs = json.loads(made_inputs.read_text())
        for entry in ("data", "model"):
            inputs[entry] |= {"path": str(made_inputs.parent / inputs[entry]["path"]), **changed.get(entry, {})}
        inputs["reward_models"][judge] |= changed.get("judge", {})
        (tmp_path / f"{name}.json").write_text(json.dumps(inputs))
        return order(name, inputs=tmp_path / f"{name}.json")

    (judge,) = json.loads(made_inputs.read_text())["reward_models"]
    (tmp_path / "empty.json").write_text("{}")
    unverified = Path(order("unverified"))
    for_gpus = unverified.parents[2] / "spec.json"
    spec = json.loads(for_gpus.read_text())
    # A stack whose check is not there: it is asked before anything is loaded.
    spec |= {"stack": "no-such-stack", "workload": {**spec["workload"], "gpus_per_node": 1}}
    for_gpus.write_text(json.dumps(spec))
    expected = {
        order("no-gpu", use_cpu=False): ["trains on one GPU, and torch sees none on this node"],
        str(unverified): ["no-such-stack/verify.py gave no verdict on this node"],
        order("unknown", lerning_rate=1): ["trainer_args.lerning_rate is no setting", "did you mean learning_rate?"],
        order("owned", output_dir="/x"): ["trainer_args.output_dir is set by the job", "got '/x'"],
        order("groups", num_generations=3): ["TRL refuses the settings", "must be divisible by num_generations"],
        order("stale", {"fingerprint": "cd" * 32}): ["for fingerprint cdcdcdcdcdcd", "submit the run again"],
        order("greedy", {"cpus": 4096}): ["asks for 4096 CPUs"],
        of_inputs("moved", data={"path": "gone.parquet"}): [
            *("the data changed after it was prepared", "gone.parquet is not there"),
        ],
        of_inputs("edited", model={"sha256": "0" * 64}): [
            *("the model changed after it was prepared", "not 000000000000; start snakemake again"),
        ],
        of_inputs("exchanged", judge={"sha256": "0" * 64}): [
            *(f"the reward model {judge} changed after it was prepared", "start snakemake again"),
        ],
        order("prepared-again", {"inputs_sha256": {"data_sha256": "1" * 64}}): [
            *("the data changed since this run was submitted", "not 111111111111; start snakemake again"),
        ],
        order("judge", rewards=[{"model": "elsewhere", "name": "x"}]): ["elsewhere is not among the prepared inputs"],
        str(tmp_path / "empty.json"): ["attempt must be whole number (got nothing)"],
    }
    orders = json.dumps({attempt: attempt for attempt in expected})
    done = warm(stack_python(TRANSFORMERS)).run("-c", REFUSALS, given=orders)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for attempt, words in expected.items():
        code, said = told[attempt]
        # A stack that gives no verdict is the node's fault, and another node may do.
        assert code == (UNFIT_NODE if "no verdict on this node" in said else USER_ERROR), said
        assert "Traceback" not in said
        for word in words:
            assert word in said.splitlines()[-1]
