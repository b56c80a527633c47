"""Names the trainers whose logs are not read yet, by what they print for each step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainers.logs.log_files import Printout

TABLE_HINT = "write a table with a column parent (docs/import.md#a-trainer-of-your-own)"


@dataclass(frozen=True)
class Foreign:
    """A trainer: its name, what a configuration may call it, and words that each step of its console has.

    `mark` is a plain part of such a line, looked for first.
    """

    name: str
    called: tuple[str, ...]
    mark: str
    step: re.Pattern[str]


FOREIGN = (
    # NVIDIA-NeMo/RL v0.1.0 to v0.7.0, nemo_rl/algorithms/grpo.py (grpo_train): the block "Timing:" of each step.
    Foreign("NeMo-RL", ("nemorl", "nemo"), "Total step time:", re.compile(r"• Total step time: [\d.]+s")),
    # THUDM/slime v0.1.0 to v0.3.1, slime/utils/train_metric_utils.py (log_perf_data_raw) and slime/ray/rollout.py.
    Foreign("slime", ("slime",), "perf ", re.compile(r"\bperf \d+: \{'")),
    # NovaSky-AI/SkyRL skyrl_train-v0.1.0 to skyrl-v0.3.0, skyrl/train/utils/utils.py: class Timer, around the phases of
    # trainer.py.
    Foreign(
        "SkyRL",
        ("skyrl", "skyrltrain"),
        ", time cost: ",
        re.compile(r"Finished: '(?:step|generate|policy_train|train_critic_and_policy|sync_weights)', time cost: "),
    ),
    # OpenRLHF/OpenRLHF v0.8.11 to v0.9.9, openrlhf/trainer/ppo_trainer.py (fit).
    Foreign("OpenRLHF", ("openrlhf",), "Global step ", re.compile(r"\bGlobal step \d+: \{'")),
    # inclusionAI/AReaL v0.3.0-lite to v1.0.4, areal/utils/stats_logger.py (commit).
    Foreign(
        "AReaL",
        ("areal", "areallite"),
        "Train step ",
        re.compile(r"Epoch \d+/\d+ Step \d+/\d+ Train step \d+/\d+ done"),
    ),
    # PrimeIntellect-ai/prime-rl v0.2 to v0.8.0, src/prime_rl/trainer/rl/train.py and orchestrator/orchestrator.py:
    # step_message.
    Foreign(
        "prime-rl",
        ("primerl",),
        " | ",
        re.compile(r"\bStep \d+ \| +(?:Time: )?\d[\d.smhd ]* \| (?:Loss|Reward):? -?\d"),
    ),
    # alibaba/ROLL v0.1.0 to v0.3.0, roll/pipeline/rlvr/rlvr_pipeline.py and agentic/agentic_pipeline.py (run).
    Foreign(
        "ROLL", ("roll",), "pipeline ", re.compile(r"\bpipeline (?:rollout global )?step \d+ (?:start\.\.\.|finished)")
    ),
)


def printed_by(parts: Iterable[Printout]) -> str | None:
    """The trainer that prints a step so; None where no printout is a step of any that is known here."""
    for part in parts:
        for one in FOREIGN:
            if one.mark in part.text and one.step.search(part.text):
                return one.name
    return None


def known_as(trainer: str) -> str | None:
    """The name of a trainer that a configuration calls so, in whatever spelling; None for none of these."""
    plain = re.sub(r"[\W_]", "", trainer.lower())
    return next((one.name for one in FOREIGN if plain in one.called), None)


def not_read(source: str, name: str) -> str:
    """What to do with such a log."""
    return (
        f"{source} looks like {name}'s console, which is not read yet: {TABLE_HINT}. If it is of a trainer that is "
        "read, say so in import.format"
    )
