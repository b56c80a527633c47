"""ms-swift with vLLM on a CPU: one run in two lives beside TRL's, an adapter sent alone with DAPO's settings, and a
merged one whose completions have several turns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from common.files import inputs_sha256
from node.dataset import arithmetic_rows
from node.seeds import engine_seed
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config
from workflow.runs.paths import RunPaths

from ...attempts import DATA, EAGER, ROOT, TRANSFORMERS, VLLM, prepared, read_lines, run_warm
from ..trl.test_trl_grpo import COMMON, PREPARE, check_clock, check_tree

STACK = "swift-vllm-cpu"
STEPS, STOPPED_AT, TRLS_STEPS = 5, 3, 2
AGREE = 1e-4  # nats, as for TRL
SYNC = f"{PREPARE}/sync_weights"
OWN = """
def even_alone(completions, rows):
    return [len(text) / 100 if row["index"] % 2 == 0 else 0.25 for text, row in zip(completions, rows, strict=True)]
"""
DAPO = {"epsilon_high": 0.28, "dynamic_sample": True, "max_resample_times": 3}
# A scale of 8: what is scaled once too often is far off.
LORA = {"tuner_type": "lora", "lora_rank": 8, "lora_alpha": 64, "lora_dropout": 0.0}
# A quarter of the completions has one turn. A first one that is cut off goes on, too; the scheduler ends some itself.
TWICE = """
from swift.rollout.multi_turn import MultiTurnScheduler

class Twice(MultiTurnScheduler):
    def check_finished(self, infer_request, response_choice, current_turn):
        return sum(response_choice.token_ids) % 4 == 0

    def step(self, infer_request, response_choice, current_turn):
        assert int(infer_request.data_dict["solution"]) < 1000
        infer_request.messages.append({"role": "user", "content": "Are you sure?"})
        ids = list(response_choice.token_ids)
        if sum(ids) % 4 == 1:
            return {"infer_request": infer_request}
        end = [self.tokenizer.eos_token_id] * (ids[-1] != self.tokenizer.eos_token_id)
        mask = [1] * len(ids) + [0] * len(end)
        return {"infer_request": infer_request, "response_token_ids": ids + end, "response_loss_mask": mask}
"""
ADAPTER_STEPS = {"dapo": 3, "merged": 2}


@dataclass(frozen=True)
class Trained:
    """Of each run its folder, what its first life said, and what was seen of its generations."""

    runs: dict[str, RunPaths]
    said: dict[str, str]
    seen: dict[str, list[dict[str, Any]]]

    def lines(self, run, attempt):
        return read_lines(self.runs[run].folder / "attempts" / str(attempt) / "metrics.jsonl")

    def done(self, run, attempt):
        return dict(json.loads((self.runs[run].folder / "attempts" / str(attempt) / "done.json").read_text()))


def specs(folder):
    """Specifications of all runs; of every second prompt all of the adapters' rewards are equal."""
    raw = yaml.safe_load((ROOT / "tests" / "trainers" / "trainers-cpu.yaml").read_text(encoding="utf-8"))
    rows = arithmetic_rows(raw["workload"]["data"]["rows"], 0)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "own.py").write_text(OWN)
    arm = {"trainer": "swift", "engine": "vllm", "stack": STACK}
    words = raw["workload"] | {"steps": STEPS, "samples": 2}
    words["data"] |= {"source": str(folder / "rows.jsonl")}
    own = {"source": str(folder / "own.py"), "function": "even_alone"}
    dapo = {"rewards": [own, {"name": "soft_overlong", "options": {"cache_length": 8}, "weight": 0.0}]}
    dapo |= {"loss_type": "dapo", "samples": 0, "learning_rate": 1.0e-2}
    # They do not compile: the run of full weights does.
    eager = LORA | {"vllm_enforce_eager": True}
    (folder / "twice.py").write_text(TWICE)
    turns = {"multi_turn_scheduler": {"source": str(folder / "twice.py"), "class": "Twice"}, "max_turns": 2}
    of = {
        "full": ({"log_rollout_offpolicy_metrics": True}, words),
        "trl": ({}, words | {"steps": TRLS_STEPS, "samples": 0}),
        "dapo": (eager | DAPO | {"vllm_enable_lora": True}, words | dapo | {"steps": ADAPTER_STEPS["dapo"]}),
        "merged": (eager | turns | DAPO, words | dapo | {"steps": ADAPTER_STEPS["merged"]}),
    }
    found = {}
    for name, (options, workload) in of.items():
        other = {"trainer": "trl", "stack": VLLM} if name == "trl" else {}
        arms = {name: arm | other | {"options": options}}
        config = parse_config(raw | {"baseline": name, "arms": arms, "workload": workload})
        found[name] = plan_runs(config, stack_facts).runs[f"{name}-s0"].spec
    return found


class Trainings:
    """Trains the planned runs in one folder."""

    def __init__(self, stack_python, folder):
        self.python, self.folder, self.planned = stack_python, folder, specs(folder)
        self.runs = {name: RunPaths(folder / name) for name in self.planned}
        self.said = {}
        workload = self.planned["full"]["workload"]
        request = {"data": DATA | workload["data"], "model": workload["model"]}
        request |= {key: workload[key] for key in ("max_prompt_length", "max_response_length")}
        self.inputs = prepared(stack_python(TRANSFORMERS), folder, request)

    def train(self, name, attempt, stop_at=0, trainer="swift", then="-"):
        order = ordered(self.runs[name], self.planned[name], self.inputs, attempt)
        out = self.folder / f"{name}.jsonl"
        watched = ("-m", "tests.trainers.swift.watched", trainer, out, stop_at, then, order)
        done = run_warm(self.python(VLLM if trainer == "trl" else STACK), *watched, **EAGER)
        assert done.returncode == (75 if stop_at else 0), (done.stdout + done.stderr)[-6000:]
        self.said.setdefault(name, done.stdout + done.stderr)

    def trained(self):
        made = {name: self.folder / f"{name}.jsonl" for name in self.planned}
        seen = {name: read_lines(file) for name, file in made.items() if file.is_file()}
        return Trained(self.runs, self.said, seen)


@pytest.fixture(scope="module")
def trainings(stack_python, tmp_path_factory):
    return Trainings(stack_python, tmp_path_factory.mktemp("swift-vllm"))


@pytest.fixture(scope="module")
def trained(trainings):
    """A run that is stopped in its third step and goes on."""
    trainings.train("full", 1, STOPPED_AT)
    trainings.train("full", 2)
    return trainings.trained()


@pytest.fixture(scope="module")
def more(trainings, trained):
    """The same, short ones that train an adapter, and one of TRL's."""
    for name in ADAPTER_STEPS:
        trainings.train(name, 1)
    trainings.train("trl", 1, trainer="trl", then=trainings.folder / "full.jsonl")
    return trainings.trained()


def ordered(run, spec, inputs, number):
    """attempt.json of a run's next life, as the launcher writes it."""
    folder = run.folder / "attempts" / str(number)
    folder.mkdir(parents=True)
    run.spec.write_text(json.dumps(spec))
    hashes = inputs_sha256(json.loads(inputs.read_text()))
    order = {
        "attempt": number,
        "run_id": run.folder.name,
        "fingerprint": spec["fingerprint"],
        "spec": str(run.spec),
        "inputs": str(inputs),
        "inputs_sha256": hashes,
        "attempt_dir": str(folder),
        "checkpoint_dir": str(run.checkpoints(spec["fingerprint"], hashes)),
        "cpus": 2,
    }
    (folder / "attempt.json").write_text(json.dumps(order))
    return folder / "attempt.json"


def differences(seen, other):
    """Of each step the largest difference between vLLM's log-probabilities of its tokens and those of a model."""
    for line in seen:
        pairs = zip(line["said"], line[other], strict=True)
        yield max(abs(a - b) for said, own in pairs for a, b in zip(said, own, strict=True))


def test_generation_and_sync_are_phases_and_their_sums_fit(trained):
    check_clock(trained.lines("full", 1) + trained.lines("full", 2))
    for line in trained.lines("full", 1) + trained.lines("full", 2):
        assert set(line["phases"]) == COMMON | {SYNC, f"{PREPARE}/old_log_prob", f"{PREPARE}/log_completions"}
        check_tree(line["phases"])
        lengths = line["samples"]["response_length"]
        assert len(lengths) == 8 and sum(lengths) == line["scalars"]["response_tokens"]
        assert line["scalars"]["train/completions/mean_length"] == pytest.approx(sum(lengths) / 8)


def test_vllm_generates_with_the_newest_weights_in_both_lives(trained):
    seen = trained.seen["full"]
    assert len(seen) == STEPS and max(differences(seen, "policy")) < AGREE
    # A sync that did nothing would be seen: the initial weights say something else by now.
    assert list(differences(seen, "initial"))[-1] > 100 * AGREE
    assert [line["synced"] for line in seen] == [{"adapter": 0, "weights": at} for at in (1, 2, 3, 1, 2)]
    for line in trained.lines("full", 1) + trained.lines("full", 2):
        assert abs(line["scalars"]["train/rollout_correction/kl"]) < AGREE
        assert 0 < line["scalars"]["mismatch/abs"] < AGREE
        assert line["scalars"]["mismatch/k3"] == pytest.approx(
            line["scalars"]["train/rollout_correction/k3_kl"], abs=1e-8
        )


@pytest.mark.full("more trainings of ms-swift")
def test_prompts_tokens_and_rewards_are_trls(more):
    """From one seed and the same weights both trainers' vLLM writes the same tokens."""
    swift, trl = more.seen["full"], more.seen["trl"][:TRLS_STEPS]
    assert [line["prompts"] for line in swift[:TRLS_STEPS]] == [line["prompts"] for line in trl]
    assert swift[0]["completions"] == trl[0]["completions"]
    scores = [row for line in more.seen["trl"][TRLS_STEPS:] for row in line["scores"]]
    rewards = [row for line in swift for row in line["rewards"]]
    assert len(rewards) == STEPS * 8 and len({tuple(row) for row in rewards}) > 1
    assert rewards == [pytest.approx(row, abs=1e-5) for row in scores]


def test_the_engine_has_the_runs_seed_and_number_format_and_trls_settings(trained):
    done = trained.done("full", 2)
    seed = engine_seed(0, STOPPED_AT)
    told = {"name": "vllm", "dtype": "float32", "seed": seed, "max_model_len": 80, "max_num_batched_tokens": 4096}
    told |= {"max_num_seqs": 8, "enable_prefix_caching": True, "adapter_only_sync": False}
    assert done["resolved"]["engine"] | told == done["resolved"]["engine"]
    assert done["hardware"]["threads"] == len(done["hardware"]["affinity"]) == 2
    assert {"ms-swift", "vllm", "peft"} <= done["versions"].keys()


@pytest.mark.full("more trainings of ms-swift")
@pytest.mark.parametrize("run", ADAPTER_STEPS)
def test_vllm_generates_with_the_adapter_as_it_is_at_every_step(run, more):
    """Sent alone, vLLM must not scale the trainer's own B; merged, weights go the way of the whole model's."""
    seen, alone = more.seen[run], run == "dapo"
    assert len(seen) == ADAPTER_STEPS[run]
    assert max(differences(seen, "policy")) < AGREE
    assert list(differences(seen, "initial"))[-1] > 100 * AGREE
    times = [at + 1 for at in range(len(seen))]
    assert [line["synced"] for line in seen] == [
        {"adapter": at, "weights": 0} if alone else {"adapter": 0, "weights": at} for at in times
    ]
    assert more.done(run, 1)["resolved"]["engine"]["adapter_only_sync"] is alone
    for line in more.lines(run, 1):
        assert {SYNC, f"{PREPARE}/generate", f"{PREPARE}/rewards/even_alone"} <= set(line["phases"])
        check_tree(line["phases"])


@pytest.mark.full("more trainings of ms-swift")
def test_two_turns_of_a_step_add_up(more):
    """It learns from what the engine wrote and from nothing else, each turn behind the prompt that the engine had."""
    steps, seen, taken = more.lines("merged", 1), more.seen["merged"], set()
    assert any(line["scalars"]["train/discarded_completions"] for line in steps)
    for line, of in zip(steps, seen, strict=True):
        asked, seconds = zip(*of["calls"], strict=True)
        assert min(seconds) > 0 and line["phases"][f"{PREPARE}/generate"] == pytest.approx(sum(seconds))
        turns = [(len(done) > len(last)) + 1 for done, last in zip(of["completions"], of["last"], strict=True)]
        taken.update(turns)
        assert line["scalars"]["train/num_turns"] == sum(turns) / 8
        # ms-swift asks once more, for nothing; what takes the place of thrown away groups takes its turns as well.
        thrown = line["scalars"]["train/discarded_completions"]
        first, second, nothing = (sum(asked[turn::3]) for turn in range(3))
        assert (first, nothing) == (8 + thrown, 0) and turns.count(2) <= second <= turns.count(2) + thrown
        written = [len(one) for one in of["completions"]]
        assert line["samples"]["response_length"] == written == of["counted"] and max(written) > 16
        assert line["scalars"]["train/completions/mean_length"] == sum(written) / 8
        assert line["scalars"]["response_tokens"] == sum(written)
        assert line["scalars"]["prompt_tokens"] == sum(map(len, of["trained"])) - sum(written)
        between = set()
        for at, (labels, whole) in enumerate(zip(of["labels"], of["trained"], strict=True)):
            assert whole == of["prompts"][at] + of["last"][at]
            assert [label for label in labels if label >= 0] == of["completions"][at]
            if turns[at] == 2:
                between.add(str(whole[of["begun"][at] + written[at] - len(of["last"][at]) : -len(of["last"][at])]))
        assert len(between) == 1, "a turn has one end, whoever wrote it"
    assert taken == {1, 2}, "in some step; which completions end early is drawn"


@pytest.mark.full("more trainings of ms-swift")
def test_groups_of_equal_rewards_are_thrown_away_and_counted(more):
    """DAPO's settings: seconds are of all completions, tokens of those that are learned from."""
    steps = more.lines("dapo", 1)
    thrown = [line["scalars"]["train/discarded_completions"] for line in steps]
    assert sum(thrown) > 0 and all(count % 4 == 0 for count in thrown)
    assert all(len(line["samples"]["response_length"]) == 8 for line in steps)
    trainer = more.done("dapo", 1)["resolved"]["trainer"]
    named = ("epsilon_high", "dynamic_sample", "max_resample_times")
    assert [trainer[name] for name in named] == [DAPO[name] for name in named] and trainer["loss_type"] == "dapo"
