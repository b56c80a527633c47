"""What the workload says reaches each trainer, under the trainer's own names, and is the same for every engine."""

import pytest
import yaml

from tests.attempts import ROOT
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config

FILES = ("tests/trainers/trainers-cpu.yaml", "experiments/camino-2025.yaml")
WORDS = {"temperature": 0.7, "top_p": 0.8, "learning_rate": 3e-6, "beta": 0.02, "max_response_length": 24}
HF = {"temperature": "temperature", "top_p": "top_p", "learning_rate": "learning_rate", "beta": "beta"}
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
NAMES = {
    "trl": HF | {"max_response_length": "max_completion_length"},
    "swift": HF | {"max_response_length": "max_completion_length"},
    "verl": {
        "temperature": f"{ROLLOUT}.temperature",
        "top_p": f"{ROLLOUT}.top_p",
        "learning_rate": f"{ACTOR}.optim.lr",
        "beta": f"{ACTOR}.kl_loss_coef",
        "max_response_length": "data.max_response_length",
    },
}


@pytest.fixture(scope="module")
def specs():
    """The spec of each run."""
    found = []
    for file in FILES:
        raw = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
        words = WORDS | {"rewards": [{"name": "accuracy", "weight": 2.0}, {"name": "format", "weight": 0.25}]}
        config = parse_config(raw | {"workload": raw["workload"] | words, "seeds": [7]})
        found += [run.spec for run in plan_runs(config, stack_facts).runs.values()]
    return found


@pytest.mark.parametrize("trainer", NAMES)
def test_the_words_of_the_workload_are_the_trainers(specs, trainer):
    found = [dict(spec["trainer_args"]) for spec in specs if spec["trainer"] == trainer]
    assert found
    for args in found:
        # verl's are words of its command.
        args |= dict(word.split("=", 1) for word in args.get("overrides", ()))
        for word, name in NAMES[trainer].items():
            assert float(args[name]) == WORDS[word], word
        if trainer != "verl":
            assert args["seed"] == 7 and args["reward_weights"] == [2.0, 0.25]
        if trainer == "trl":
            # A correction of one engine's mismatch would make the arms unequal.
            assert args["vllm_importance_sampling_correction"] is args["use_bias_correction_kl"] is False
