"""Real runs of two steps with transformers, and what all trainings with TRL have in common."""

import json
import signal

import pytest

from common.contracts import Sample, SamplesLine
from engines.reported import TERMS
from node.exit_codes import UNFIT_NODE, USER_ERROR
from trainers.timers.exclusive import overruns, parents

from ... import patience
from ...attempts import (
    REWARDS,
    TRAIN,
    TRANSFORMERS,
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

PREPARE = "step/training_step/prepare_inputs"
COMMON = {
    "step", "step/training_step", PREPARE, f"{PREPARE}/generate", f"{PREPARE}/ref_log_prob", f"{PREPARE}/rewards",
    f"{PREPARE}/rewards/accuracy", f"{PREPARE}/rewards/format", f"{PREPARE}/rewards/length",
    "step/training_step/compute_loss", "step/training_step/compute_loss/policy_log_prob", "step/training_step/backward",
    "step/optimizer_step",
}  # fmt: skip


def check_tree(phases):
    """Every phase has its parent, and children never take longer than it (1 ms for the clock's own work)."""
    assert min(phases.values()) >= 0
    assert all(path.rpartition("/")[0] == (parent or "") for path, parent in parents(phases).items())
    assert not overruns(phases)


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


OWN_CODE = """
def brevity(completions, rows, token_ids, *, most):
    assert rows[0]["ground_truth"] and rows[0]["index"] >= 0
    return [_score(text, ids, most) for text, ids in zip(completions, token_ids)]

def _score(text, ids, most):
    if len(text) % 2:
        raise ValueError("an odd completion")
    return 1.0 - len(ids) / most
"""
OWN = {"source": "mine.py", "function": "brevity", "weight": 0.3, "options": {"most": 16}, "code": OWN_CODE}
OWN_NAMES = ("brevity", "liked")


def with_a_model(inputs):
    """The rewards of all, one of the user's, and a reward model for which all texts are too long."""
    rewards = [*REWARDS, OWN, reward_model(inputs, max_length=24)]
    return {"rewards": rewards, "reward_weights": [one["weight"] for one in rewards]}


SAMPLED = {"samples": 3, "temperature": 1.0, "top_p": 1.0, "max_response_length": 16}


@pytest.fixture(scope="module")
def trained(stack_python, made_inputs, tmp_path_factory):
    """The folder of a finished attempt of two steps, its lines, and its done.json."""
    folder = tmp_path_factory.mktemp("runs") / "tf-s0"
    attempt = write_attempt(folder, made_inputs, words=SAMPLED, **with_a_model(made_inputs))
    done = run_job(stack_python(TRANSFORMERS), "trainers.trl.driver.train", attempt)
    assert done.returncode == 0, done.stderr
    assert "step 2/2  " in done.stdout and " s left" in done.stdout
    for path in attempt.parent.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
    told = json.loads((attempt.parent / "done.json").read_text())
    return attempt.parent, read_lines(attempt.parent / "metrics.jsonl"), told


def test_each_step_has_its_timers_and_tokens(trained):
    _, lines, _ = trained
    assert [line["step"] for line in lines] == [1, 2]
    check_clock(lines)
    before = 0
    for line in lines:
        check_tree(line["phases"])
        assert set(line["phases"]) == COMMON | {f"{PREPARE}/rewards/{name}" for name in OWN_NAMES}
        scalars, responses = line["scalars"], line["samples"]["response_length"]
        assert len(responses) == 8 and sum(responses) == scalars["response_tokens"]
        assert scalars["train/completions/mean_length"] == pytest.approx(sum(responses) / 8)
        assert scalars["train/num_tokens"] == before + scalars["prompt_tokens"] + scalars["response_tokens"]
        before = scalars["train/num_tokens"]
        assert ("between_steps_s" in scalars) == (line["step"] > 1)
        assert 0 < scalars["mismatch/abs"] < 1e-3 and 0 <= scalars["mismatch/k3"] < 1e-5


def test_what_it_ran_with_is_in_done_json(trained):
    _, _, done = trained
    assert (done["first_step"], done["last_step"], done["steps"]) == (1, 2, 2)
    assert done["hardware"]["cpus"] == done["hardware"]["threads"] == len(done["hardware"]["affinity"]) == 2
    assert done["resolved"]["engine"]["dtype"] == "float32" and done["resolved"]["trainer"]["max_steps"] == 2
    assert set(reported_terms(done)) == set(TERMS) and reported_terms(done)["sequences at once"] == "no limit"
    assert "vllm" not in done["versions"] and len(done["inputs"]["reward_models_sha256"]) == 64


def test_rewards_of_the_users_are_logged_as_trls_own(trained):
    """A completion on which a function fails is counted and adds nothing; so is what a reward model cuts off."""
    folder, lines, _ = trained
    failures = read_lines(folder / "reward_failures.jsonl")
    assert sum(line["scalars"]["train/rewards/brevity/failed"] for line in lines) == len(failures) > 0
    assert "ValueError: an odd completion (mine.py, line 8)" in failures[0]["problem"]
    assert all(len(one["completion"]) % 2 and one["row"]["ground_truth"] for one in failures)
    for line in lines:
        scalars = line["scalars"]
        values = {"brevity": (8 - scalars["train/rewards/brevity/failed"]) / 8}
        weights = {
            one.get("name", "brevity"): one["weight"] for one in [*REWARDS, OWN, {"name": "liked", "weight": 0.4}]
        }
        parts = [w * scalars[f"train/rewards/{name}/mean"] * values.get(name, 1) for name, w in weights.items()]
        assert scalars["train/reward"] == pytest.approx(sum(parts), abs=1e-6)
        assert scalars["train/rewards/brevity/std"] >= 0 and scalars["train/rewards/liked/std"] > 1e-3
        assert scalars["train/rewards/liked/truncated"] == 8 and scalars["train/rewards/liked/failed"] == 0


def test_samples_of_the_batches_that_it_trains_on(trained):
    folder, steps, _ = trained
    lines = read_lines(folder / "samples.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    for line, step in zip(lines, steps, strict=True):
        assert problems(SamplesLine, line) == [] and line["problem"] is None
        assert len({one["row"] for one in line["samples"]}) == len({str(one["prompt"]) for one in line["samples"]}) == 2
        for one in line["samples"]:
            assert problems(Sample, one) == []
            assert one["tokens"] in step["samples"]["response_length"] and (one["cut_off"] or one["tokens"] < 16)
            assert list(one["rewards"]) == ["accuracy", "format", "length", *OWN_NAMES]
            assert one["rewards"]["liked"] is not None
            assert (one["rewards"]["brevity"] is None) == bool(len(one["completion"]) % 2)


def test_wandb_has_the_timings_in_the_row_of_the_step(trained, stack_python):
    folder, lines, _ = trained
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    done = run_python(stack_python(TRANSFORMERS), "-m", "wandb", "leet", "inspect", "--json", file)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    rows = [row for row in history if "timing_s/step" in row]
    assert [row["train/global_step"] for row in rows] == [1, 2]
    for row, line in zip(rows, lines, strict=True):
        told = {key.removeprefix("timing_s/"): row[key] for key in row if key.startswith("timing_s/")}
        assert told == line["phases"]
        assert row["train/reward"] == line["scalars"]["train/reward"]


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
        attempt = write_attempt(tmp_path / folder, made_inputs, number, max_steps=steps, save_steps=17)
        done = run_warm(stack_python(TRANSFORMERS), "-c", TELLING + TRAIN, attempt)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("prompts ")]

    whole = prompts("whole", 1, 36)
    assert len(set(whole)) > 2 * 16
    lives = [prompts("resumed", number, steps) for number, steps in ((1, 17), (2, 34), (3, 36))]
    assert [len(life) * 36 // len(whole) for life in lives] == [17, 17, 2]
    assert [prompt for life in lives for prompt in life] == whole


@pytest.mark.promise("a-tracker-that-dies")
@pytest.mark.full("a training of TRL")
def test_a_stop_signal_saves_and_asks_to_be_requeued(stack_python, made_inputs, tmp_path, trained):
    settings = {"max_steps": 500, "save_strategy": "no", **with_a_model(made_inputs)}
    attempt = write_attempt(tmp_path / "stopped", made_inputs, **settings)
    job = warm(stack_python(TRANSFORMERS)).start("-m", "trainers.trl.driver.train", attempt, joined=True)
    patience.until(lambda: len(read_lines(attempt.parent / "metrics.jsonl")) >= 2 or job.poll() is not None, job.pid)
    signal_job(job.pid, signal.SIGTERM)
    said, _ = patience.ended(job, 300)
    lines = read_lines(attempt.parent / "metrics.jsonl")
    last = lines[-1]["step"]
    assert job.returncode == 75 and f"stopped: after step {last} of 500" in said, said
    assert not (attempt.parent / "done.json").exists()
    assert (tmp_path / "stopped" / "checkpoints" / "abababababab" / f"checkpoint-{last}").is_dir()
    assert "wandb has ended" in said or "wandb is lost" in said
    folders = (attempt.parent / "wandb").glob("offline-run-*")
    assert len({folder.name.split("-")[-1] for folder in folders}) == 1, "it is one run all the same"
    # The other run took samples before either step, and learned the same.
    for line, sampled in zip(lines, trained[1], strict=False):
        assert line["samples"] == sampled["samples"]
        names = ("train/reward", "train/loss", "train/grad_norm", "train/rewards/brevity/failed")
        assert [line["scalars"][name] for name in names] == [pytest.approx(sampled["scalars"][name]) for name in names]

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
# Which file of an attempt has which other entries ("args" are the trainer's) -> words of the one line.
MISTAKES = {
    "no GPU": ("args", {"use_cpu": False}, ["trains on one GPU, and torch sees none on this node"]),
    "unknown": ("args", {"lerning_rate": 1}, ["trainer_args.lerning_rate is no setting", "mean learning_rate?"]),
    "owned": ("args", {"output_dir": "/x"}, ["trainer_args.output_dir is set by the job", "got '/x'"]),
    "groups": ("args", {"num_generations": 3}, ["TRL refuses the settings", "must be divisible by num_generations"]),
    "stale": ("attempt", {"fingerprint": "cd" * 32}, ["for fingerprint cdcdcdcdcdcd", "submit the run again"]),
    "greedy": ("attempt", {"cpus": 4096}, ["asks for 4096 CPUs"]),
    "no number": ("attempt", {"attempt": "x"}, ["attempt must be whole number (got 'x')"]),
    "prepared again": (
        *("attempt", {"inputs_sha256": {"data_sha256": "1" * 64}}),
        ["the data changed since this run was submitted", "not 111111111111; start snakemake again"],
    ),
    "moved": ("data", {"path": "gone"}, ["the data changed after it was prepared", "gone is not there"]),
    "edited": ("model", {"sha256": "0" * 64}, ["the model changed after it was prepared", "not 000000000000; start"]),
    "exchanged": ("judge", {"sha256": "0" * 64}, ["the reward model ", " changed after it was prepared"]),
    # It is asked before anything is loaded; the node's fault, and another node may do.
    "unverified": ("spec", {"stack": "no-such-stack"}, ["no-such-stack/verify.py gave no verdict on this node"]),
}


@pytest.mark.promise("data-or-model-that")
def test_mistakes_are_one_line(stack_python, made_inputs, tmp_path):
    def order(name):
        """An attempt with one mistake; the paths in its inputs.json hold from elsewhere."""
        file, changes, _ = MISTAKES[name]
        inputs = json.loads(made_inputs.read_text())
        (judge,) = inputs["reward_models"].values()
        parts = {"data": inputs["data"], "model": inputs["model"], "judge": judge}
        for part in parts.values():
            part["path"] = str(made_inputs.parent / part["path"])
        parts.get(file, {}).update(changes)
        folder = tmp_path / name
        (tmp_path / f"{name}.json").write_text(json.dumps(inputs))
        path = write_attempt(folder, tmp_path / f"{name}.json", **changes if file == "args" else {})
        for json_file in (path, folder / "spec.json"):
            content = json.loads(json_file.read_text()) | (changes if json_file.stem == file else {})
            if name == "unverified" and file == json_file.stem:
                content["workload"]["gpus_per_node"] = 1
            json_file.write_text(json.dumps(content))
        return str(path)

    orders = json.dumps({name: order(name) for name in MISTAKES})
    done = warm(stack_python(TRANSFORMERS)).run("-c", REFUSALS, given=orders)
    assert done.returncode == 0, done.stderr
    for name, (code, said) in json.loads(done.stdout.splitlines()[-1]).items():
        assert code == (UNFIT_NODE if name == "unverified" else USER_ERROR), said
        assert "Traceback" not in said
        for word in MISTAKES[name][2]:
            assert word in said.splitlines()[-1]
