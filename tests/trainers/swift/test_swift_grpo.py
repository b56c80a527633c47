"""One real training with ms-swift in two lives beside one with TRL: the same data, the same seed, on a CPU."""

import functools
import json
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from ... import patience
from ...attempts import TRANSFORMERS, prepared, read_lines, request_of, run_warm
from ..trl.test_trl_grpo import COMMON, PREPARE, check_clock, check_tree
from ..trl.test_trl_ranks import start
from .runs import Run, planned

pytestmark = pytest.mark.full("trainings of ms-swift beside TRL, some of two processes")

SWIFT = "swift-transformers-cpu"
STEPS, STOPPED_AT, ROWS = 6, 3, 4
_OURS = ("old_log_prob", "log_completions", "rewards/by_level", "rewards/registered", "rewards/liked")
PHASES = COMMON | {f"{PREPARE}/{name}" for name in _OURS}


REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf-8"))
LEARNED = ("loss", "reward", "kl", "grad_norm")


class Trained(NamedTuple):
    """Both runs, and what the first life of swift's said last."""

    swift: Run
    trl: Run
    said: str
    inputs: Path


@pytest.fixture(scope="module")
def trained(stack_python, tmp_path_factory):
    """swift's run, which is stopped in its third step and goes on, and TRL's."""
    folder = tmp_path_factory.mktemp("trainers")
    specs = planned(folder, "swift", "trl")
    inputs = prepared(stack_python(TRANSFORMERS), folder, request_of(specs["trl"]["workload"]))
    swift, trl = (Run(folder / name, specs[name], inputs) for name in ("swift", "trl"))

    def train(run, stack, life, stop_at=0, then="-"):
        done = run_warm(stack_python(stack), *run.watched(life, stop_at, then))
        assert done.returncode == (75 if stop_at else 0), done.stderr
        return done.stdout + done.stderr

    settings = {**specs["swift"]["trainer_args"], "reward_weights": [1.0]}
    changes = [{}, {"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}, *(change for change, _ in REFUSED)]
    (folder / "settings.json").write_text(json.dumps([{**settings, **change} for change in changes]))
    said = train(swift, SWIFT, 1, STOPPED_AT)
    train(swift, SWIFT, 2, then=folder / "settings.json")
    train(trl, TRANSFORMERS, 1)
    return Trained(swift, trl, said, inputs)


def test_it_stops_on_request_and_goes_on_with_the_next_step(trained):
    first, second = trained.swift.lines(1), trained.swift.lines(2)
    assert f"stopped: after step {STOPPED_AT} of {STEPS}, with a checkpoint" in trained.said
    assert [line["step"] for line in first] == [1, 2, 3] and [line["step"] for line in second] == [4, 5, 6]
    assert [line["resumed"] for line in first + second] == [False] * 3 + [True, False, False]
    done = trained.swift.done(2)
    assert (done["first_step"], done["last_step"], done["steps"]) == (4, 6, 3)
    assert done["versions"]["ms-swift"] == "4.6.0" and done["resolved"]["engine"]["dtype"] == "float32"
    rates = [line["scalars"]["train/learning_rate"] for line in first + second]
    assert rates == [pytest.approx(1e-3)] * STEPS


def test_both_take_samples_of_the_same_prompts(trained):
    lives = ((trained.swift, 1), (trained.swift, 2), (trained.trl, 1))
    taken = [run.lines(life, name="samples.jsonl") for run, life in lives]
    assert [[line["step"] for line in lines] for lines in taken] == [[1, 3], [6], [1, 3, 6]]
    every = [line for lines in taken for line in lines]
    assert {line["problem"] for line in every} == {None}
    prompts = {(line["step"], json.dumps([one["prompt"] for one in line["samples"]])) for line in every}
    assert len(prompts) == 3, "each step has its own, the same under both trainers"
    for line in every:
        for one in line["samples"]:
            assert one["completion"] and all(value is not None for value in one["rewards"].values())


def test_every_timer_is_a_phase_and_their_sums_fit(trained):
    # Of two micro-batches: TRL's own clock sums them, and swift's timers would show the last.
    check_clock(trained.swift.lines(1, 2))
    for line in trained.swift.lines(1, 2):
        assert set(line["phases"]) == PHASES
        check_tree(line["phases"])
        assert len(line["samples"]["response_length"]) == 8
        # What swift counts as it trains, and what was seen as the engine generated.
        mean = sum(line["samples"]["response_length"]) / 8
        assert line["scalars"]["train/completions/mean_length"] == pytest.approx(mean)
        assert line["scalars"]["response_tokens"] == sum(line["samples"]["response_length"])


def test_what_swift_refuses_is_told_before_anything_is_loaded(trained):
    (whole, shared, *refused) = trained.swift.seen()[STEPS:]
    assert whole["version"] == "4.6.0" and whole["settings"]["template_backend"] == "jinja"
    assert not {"output_dir", "run_name"} & whole["settings"].keys()
    config = ("state_dict_type", "reshard_after_forward", "activation_checkpointing")
    assert [shared["settings"][name] for name in ("fsdp", *(f"fsdp_config.{name}" for name in config))] == [
        *(True, "FULL_STATE_DICT", False, False)
    ]
    for line, (change, words) in zip(refused, REFUSED, strict=True):
        assert all(word in line["refused"] for word in words), (change, line["refused"])


def test_prompts_are_trls_token_by_token_across_the_stop(trained):
    swift, trl = trained.swift.seen()[:STEPS], trained.trl.seen()[:STEPS]
    assert [line["prompts"] for line in swift] == [line["prompts"] for line in trl]
    passes = [{tuple(ids) for line in swift[at : at + 2] for ids in line["prompts"]} for at in range(0, STEPS, 2)]
    assert [len(prompts) for prompts in passes] == [ROWS] * 3  # two prompts a step


def test_it_learns_from_the_completions_tokens_alone(trained):
    for line in trained.swift.seen()[:STEPS]:
        for at, (prompt, completion) in enumerate(zip(line["prompts"], line["completions"], strict=True)):
            assert line["trained"][at] == prompt + completion
            assert line["labels"][at] == [-100] * len(prompt) + completion
            assert line["counted"][at] == len(completion)


def test_a_reward_of_ones_own_gets_the_datas_columns(trained):
    for line in (*trained.swift.lines(1, 2), *trained.trl.lines(1)):
        scalars = line["scalars"]
        assert [scalars[f"train/rewards/{name}/failed"] for name in ("by_level", "registered")] == [0.0, 0.0]
        # The length of each completion, and 0.5 where row and argument are those of the completion's prompt.
        assert 0.5 <= scalars["train/rewards/by_level/mean"] < 3


def test_generation_and_training_pass_differ_by_rounding_only(trained):
    steps = [line["scalars"] for line in trained.swift.lines(1, 2)]
    assert 0 < min(scalars["mismatch/abs"] for scalars in steps) < 1e-4
    # A padding token that was sampled is learned, too: without it what follows was generated behind another text.
    assert all(0 <= scalars["mismatch/k3"] < 1e-6 for scalars in steps)


def test_the_score_is_the_weighted_sum_of_the_rewards(trained):
    rewards = trained.swift.spec["workload"]["rewards"]
    weights = {one["function" if "source" in one else "name"]: one["weight"] for one in rewards}
    assert weights == {"accuracy": 1.0, "format": 0.5, "length": 0.2, "by_level": 0.3, "registered": 0.1, "liked": 0.4}
    for line in trained.swift.lines(1, 2):
        parts = [weight * line["scalars"][f"train/rewards/{name}/mean"] for name, weight in weights.items()]
        assert line["scalars"]["train/reward"] == pytest.approx(sum(parts), abs=1e-5)
    liked = {round(row[-1], 4) for line in trained.swift.seen()[:STEPS] for row in line["rewards"]}
    assert len(liked) > STEPS, "the reward model tells completions apart"


EQUAL = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm", "optim", "lr_scheduler_type"),
    *("learning_rate", "warmup_steps", "temperature", "top_p", "epsilon", "beta", "num_iterations", "scale_rewards"),
    *("loss_type", "num_generations", "generation_batch_size", "gradient_accumulation_steps", "max_completion_length"),
    *("per_device_train_batch_size", "bf16", "fp16", "seed", "reward_weights", "max_steps", "repetition_penalty"),
)


def test_settings_are_trls(trained):
    swift, trl = (done["resolved"] for done in (trained.swift.done(2), trained.trl.done(1)))
    assert {name: swift["trainer"][name] for name in EQUAL} == {name: trl["trainer"][name] for name in EQUAL}
    # Each trainer's own configuration of its generations: None would be transformers' default of 50.
    assert swift["engine"]["generation"]["top_k"] == trl["engine"]["generation"]["top_k"] == 0


@pytest.fixture(scope="module")
def lives(trained, stack_python, tmp_path_factory):
    """By how the model is spread: one run of two lives, and what was seen of them."""
    python = stack_python(SWIFT)
    return functools.cache(lambda spread: in_two(python, tmp_path_factory.mktemp(spread), trained.inputs, spread))


@pytest.fixture(params=["ddp", "fsdp"])
def two_lives(lives, request):
    return lives(request.param)


def in_two(python, folder, inputs, spread):
    """swift in two processes: stopped by a signal to one of them, then trained to its end."""
    lives, run = {}, Run(folder / "run", planned(folder, spread)[spread], inputs)
    assert run.spec["spread"] == "torchrun"
    for life, stop_at in ((1, 2), (2, 0)):
        run.out = folder / f"{life}-"
        forks = spread == "fsdp" or life == 1
        job = start(python, folder, *map(str, run.watched(life, stop_at)), forks=forks)
        said, _ = patience.ended(job, 300)
        seen = [run.seen(rank) for rank in (0, 1)]
        lines = run.lines(life)
        lives[life] = {"code": job.returncode, "said": said, "lines": lines, "seen": seen, "folder": run.life(life)}
    return lives


def test_two_processes_share_the_batch_that_one_has(trained, two_lives):
    life = two_lives[1]
    assert life["code"] == 75, life["said"]
    assert life["said"].count("stopped: after step 2 of 3, with a checkpoint") == 2
    first, second = life["seen"]
    for step, line in enumerate(life["lines"], 1):
        shares = first[step - 1], second[step - 1]
        assert shares[0]["prompts"] + shares[1]["prompts"] == trained.trl.seen()[step - 1]["prompts"]
        check_tree(line["phases"])
        lengths = [len(ids) for share in shares for ids in share["completions"]]
        assert line["samples"]["response_length"] == lengths and line["scalars"]["response_tokens"] == sum(lengths)
        assert line["scalars"]["train/discarded_completions"] == 0
        assert line["scalars"]["train/rewards/dull/failed"] == 1, "of both processes"
        assert "slowest_rank_s/step/training_step/prepare_inputs/generate" in line["scalars"]
    assert [line["step"] for line in life["lines"]] == [1, 2]


def test_good_groups_are_shared_out_anew_among_the_processes(two_lives):
    life = two_lives[2]
    assert life["code"] == 0, life["said"]
    (line,), (first,), (second,) = life["lines"], *life["seen"]
    assert (line["step"], line["resumed"]) == (3, True)
    # Of the first two groups one is dull, and of the next two one is enough.
    assert line["scalars"]["train/discarded_completions"] == 8
    shares = [*first["prompts"], *second["prompts"]]
    assert len(shares) == 8 and len({tuple(ids) for ids in shares}) == 2
    assert line["scalars"]["prompt_tokens"] == sum(map(len, shares))
    done = json.loads((life["folder"] / "done.json").read_text())
    assert done["hardware"]["processes"] == 2 and done["hardware"]["threads"] == 1


def test_fsdp_trains_what_ddp_trains_before_and_after_a_resume(lives):
    ddp, fsdp = lives("ddp"), lives("fsdp")
    for life in (1, 2):
        for whole, shared in zip(ddp[life]["seen"], fsdp[life]["seen"], strict=True):
            assert [line["completions"] for line in shared] == [line["completions"] for line in whole]
            for one, other in zip(whole, shared, strict=True):
                # FSDP's state names what is tied twice.
                assert {name: other["sent"][name] for name in one["sent"]} == pytest.approx(one["sent"], rel=1e-4)
                assert [*other["policy"], *other["initial"]] == [
                    pytest.approx(row, abs=1e-3) for row in [*one["policy"], *one["initial"]]
                ]
        for one, other in zip(ddp[life]["lines"], fsdp[life]["lines"], strict=True):
            learned = [{name: line["scalars"][f"train/{name}"] for name in LEARNED} for line in (one, other)]
            assert learned[1] == pytest.approx(learned[0], rel=1e-3, abs=1e-6)
    sampled = [read_lines(run[2]["folder"] / "samples.jsonl")[-1] for run in (ddp, fsdp)]
    assert sampled[0]["samples"] == sampled[1]["samples"] != [] and not sampled[1]["problem"]
    longest = [[max(map(len, line["completions"])) for line in of_rank] for of_rank in fsdp[1]["seen"]]
    assert longest[0] != longest[1], "one process has its completions before the other"
    for run in (ddp, fsdp):
        (checkpoint,) = (run[1]["folder"].parents[1] / "checkpoints").glob("**/checkpoint-2")
        assert (checkpoint / "pytorch_model_fsdp.bin").exists() == (run is fsdp)
        assert (checkpoint / "model.safetensors").exists()
