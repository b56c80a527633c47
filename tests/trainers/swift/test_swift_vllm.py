"""ms-swift with vLLM on a CPU: a run of full weights, one in two lives, DAPO's settings with an adapter sent alone, and
a merged one whose completions have several turns."""

import pytest

from node.seeds import engine_seed

from ...attempts import EAGER, inputs_of, run_warm, warm
from ..trl.test_trl_grpo import COMMON, PREPARE, check_clock, check_tree
from .runs import AGREE, Run, check_newest_weights, planned

STACK = "swift-vllm-cpu"
STOPPED_AT = 3
SYNC = f"{PREPARE}/sync_weights"


class Trainings:
    """The planned runs in one folder; each is trained when a test first asks for it."""

    def __init__(self, stack_python, folder):
        specs = planned(folder, "full", "resumed", "dapo", "merged")
        self.python = stack_python(STACK)
        inputs = inputs_of(warm(self.python, **EAGER), folder, specs["full"]["workload"])
        self.runs = {name: Run(folder / name, spec, inputs) for name, spec in specs.items()}

    def train(self, name, life=1, stop_at=0):
        run = self.runs[name]
        if not run.life(life).exists():
            done = run_warm(self.python, *run.watched(life, stop_at), **EAGER)
            assert done.returncode == (75 if stop_at else 0), (done.stdout + done.stderr)[-6000:]
        return run


@pytest.fixture(scope="module")
def trainings(stack_python, tmp_path_factory):
    return Trainings(stack_python, tmp_path_factory.mktemp("swift-vllm"))


@pytest.fixture(scope="module")
def full(trainings):
    """A run of full weights from its first step to its last."""
    return trainings.train("full")


def test_generation_and_sync_are_phases_and_their_sums_fit(full):
    check_clock(full.lines(1))
    for line in full.lines(1):
        assert set(line["phases"]) == COMMON | {SYNC, f"{PREPARE}/old_log_prob", f"{PREPARE}/log_completions"}
        check_tree(line["phases"])
        lengths = line["samples"]["response_length"]
        assert len(lengths) == 8 and sum(lengths) == line["scalars"]["response_tokens"]
        assert line["scalars"]["train/completions/mean_length"] == pytest.approx(sum(lengths) / 8)


def test_vllm_generates_with_the_newest_weights(full):
    check_newest_weights(full.seen(), 3)
    assert [line["synced"] for line in full.seen()] == [{"adapter": 0, "weights": at} for at in (1, 2, 3)]
    for line in full.lines(1):
        scalars = line["scalars"]
        assert abs(scalars["train/rollout_correction/kl"]) < AGREE and 0 < scalars["mismatch/abs"] < AGREE
        assert scalars["mismatch/k3"] == pytest.approx(scalars["train/rollout_correction/k3_kl"], abs=1e-8)


def test_the_engine_has_the_runs_seed_and_number_format_and_trls_settings(full):
    done = full.done(1)
    told = {"name": "vllm", "dtype": "float32", "max_model_len": 80, "max_num_batched_tokens": 4096}
    told |= {"seed": engine_seed(0, 0), "max_num_seqs": 8, "enable_prefix_caching": True, "adapter_only_sync": False}
    assert done["resolved"]["engine"] | told == done["resolved"]["engine"]
    assert done["hardware"]["threads"] == len(done["hardware"]["affinity"]) == 2
    assert {"ms-swift", "vllm", "peft"} <= done["versions"].keys()


@pytest.mark.full("more trainings of ms-swift")
def test_a_resumed_run_generates_with_the_newest_weights_and_another_seed(trainings):
    trainings.train("resumed", 1, STOPPED_AT)
    run = trainings.train("resumed", 2)
    check_newest_weights(run.seen(), 5)
    assert [line["synced"]["weights"] for line in run.seen()] == [1, 2, 3, 1, 2]
    assert [line["step"] for line in run.lines(1, 2)] == [1, 2, 3, 4, 5]
    assert run.done(2)["resolved"]["engine"]["seed"] == engine_seed(0, STOPPED_AT)


@pytest.mark.full("more trainings of ms-swift")
@pytest.mark.parametrize("name", ["dapo", "merged"])
def test_vllm_generates_with_the_adapter_as_it_is_at_every_step(name, trainings):
    """Sent alone, vLLM must not scale the trainer's own B; merged, weights go the way of the whole model's."""
    run, alone = trainings.train(name), name == "dapo"
    steps = run.spec["workload"]["steps"]
    check_newest_weights(run.seen(), steps)
    assert [line["synced"] for line in run.seen()] == [
        {"adapter": at, "weights": 0} if alone else {"adapter": 0, "weights": at} for at in range(1, steps + 1)
    ]
    assert run.done(1)["resolved"]["engine"]["adapter_only_sync"] is alone
    for line in run.lines(1):
        assert {SYNC, f"{PREPARE}/generate", f"{PREPARE}/rewards/even_alone"} <= set(line["phases"])
        check_tree(line["phases"])


@pytest.mark.full("more trainings of ms-swift")
def test_two_turns_of_a_step_add_up(trainings):
    """It learns from what the engine wrote and from nothing else, each turn behind the prompt that the engine had."""
    run, taken = trainings.train("merged"), set()
    steps, seen = run.lines(1), run.seen()
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
def test_groups_of_equal_rewards_are_thrown_away_and_counted(trainings):
    """DAPO's settings: seconds are of all completions, tokens of those that are learned from."""
    run = trainings.train("dapo")
    steps = run.lines(1)
    thrown = [line["scalars"]["train/discarded_completions"] for line in steps]
    assert sum(thrown) > 0 and all(count % 4 == 0 for count in thrown)
    assert all(len(line["samples"]["response_length"]) == 8 for line in steps)
    trainer = run.done(1)["resolved"]["trainer"]
    named = ("epsilon_high", "dynamic_sample", "max_resample_times")
    assert [trainer[name] for name in named] == [0.28, True, 3] and trainer["loss_type"] == "dapo"
