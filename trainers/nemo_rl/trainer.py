"""NeMo-RL: what its GRPO logs. Imported, not driven.

Read in releases 0.3.0 to 0.7.0: nemo_rl/algorithms/grpo.py (grpo_train, async_grpo_train, validate,
refit_policy_generation) and nemo_rl/utils/{timer,logger}.py. Its console has a block for each step, from a line
`==== Step 3/100 ====` to the timers after `Total step time:`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.verdicts import Verdict
from trainers.logs.log_files import Printout, printouts
from trainers.logs.printed import PrintedNumber, half_digit, parse_number
from trainers.logs.record import TIMERS, Imported, StepRecord
from trainers.logs.restarts import steps_in_sequence
from trainers.logs.step_names import StepNames
from trainers.protocol import LogFormat, Trainer
from trainers.timers.tree import Phase, TimerTree, keyed, overlapping_tree

FORMAT = "nemo-rl-console"
_ENGINES = ("vllm", "sglang")
_BEFORE_SGLANG = ("0.3", "0.4", "0.5")
_TOTAL, _VALIDATION = "total_step_time", "total_validation_time"
NAMES = StepNames(
    mark=f"timing/train/{_TOTAL}",
    counter="_step",
    total=_TOTAL,
    timers=(("timing/train/", ""), ("timing/validation/", "")),
)
_HEAD = re.compile(r"={5,} (Step|Epoch) (\d{1,12})/(\d{1,12}) ={5,}")
_ENTRY = re.compile(r"• ([\w /.-]+?): (-?[\d.]+|nan|inf)(?:s|\b)")
_STEP = "• Total step time: "
# A block's entries beside its timers -> wandb's names.
_ENTRIES = {
    "Loss": "train/loss",
    "Generation KL Error": "train/gen_kl_error",
    "Avg Reward": "train/reward",
    "Avg Total Reward": "train/reward",
    "Avg Filtered Reward": "train/filtered_reward",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Total validation time": TIMERS + _VALIDATION,
    "Total step time": TIMERS + _TOTAL,
}


# nemo_rl/models/policy/lm_policy.py and, from 0.7 on, tq_policy.py: the driver's work before it waits for workers.
_LOGPROBS = ("get_logprobs", "get_reference_policy_logprobs")
_HANDED_OUT = {
    "policy_training": tuple(
        f"policy_training/{name}" for name in ("sharding_data", "shard_meta", "submit_training_futures")
    ),
    "policy_and_reference_logprobs": (
        *(f"{pass_}/{name}" for pass_ in _LOGPROBS for name in ("shard_data", "shard_meta", "submit_futures")),
        "get_logprobs/submit_logprob_futures",
        "get_reference_policy_logprobs/submit_reference_policy_logprob_futures",
    ),
}
# Logged among the timers.
_BESIDE = (("valid_tokens_per_sec_per_gpu", "1", "*"),)


def _phases(series: str) -> tuple[Phase, ...]:
    refit = "step/prepare_for_generation"
    prepare = "prepare_for_generation" + ("" if series == "0.3" else "/total")
    what = "The engine wakes and gets the new weights, if they have changed."
    found = [
        Phase("step", "Step", "Wall clock of one training step on the driver.", "other", (_TOTAL,)),
        keyed("data_processing", "Process data", "Repeats prompts, and makes the training batch."),
        keyed(prepare, "Prepare generation", what, "weight sync", name="prepare_for_generation"),
    ]
    if series != "0.3":
        transfer = f"{prepare.partition('/')[0]}/transfer_and_update_weights"
        found.append(
            keyed(
                transfer, "Transfer weights", "The transfer of the weights.", "weight sync", refit, "transfer_weights"
            )
        )
    found += [
        keyed("generation", "Generate", "The responses, turns with environments and their rewards.", "generation"),
        keyed("reward_calculation", "Rewards", "Baselines per prompt; up to 0.5 the advantages, too.", "rewards"),
        keyed(
            "dynamic_sampling", "Dynamic sampling", "Keeps prompts that differ.", "rewards", "step/reward_calculation"
        ),
        keyed("logprob_inference_prep", "Prepare log-probs", "Loads the policy for inference.", "log-probs"),
        keyed("policy_and_reference_logprobs", "Log-probs", "Of the policy and the reference.", "log-probs"),
        keyed("advantage_calculation", "Advantages", "From 0.6 on, with the reference's penalty."),
        keyed("training_prep", "Prepare training", "Loads the optimizer, and sets the model to training."),
        keyed("policy_training", "Train policy", "Forward, backward and the optimizer.", "loss+backward"),
        keyed("recompute_kv_scales", "Recompute KV scales", "Of an FP8 cache, after the update.", "weight sync"),
        keyed(_VALIDATION, "Validation", "The step waits for it.", name="validation", occasional=True),
        keyed("checkpointing", "Checkpoint", "The step waits for it.", occasional=True),
    ]
    if series in ("0.6", "0.7"):
        found += [
            Phase(f"step/{within}/{key.replace('/', '.')}", key, "Handing out the batch.", "other", (key,))
            for within, keys in _HANDED_OUT.items()
            for key in keys
        ]
    return tuple(found)


def _trees(series: str) -> tuple[TimerTree, ...]:
    # grpo.py (setup) accepts SGLang from 0.6 on; Megatron's own inference is not an engine here.
    engines = _ENGINES[:1] if series in _BEFORE_SGLANG else _ENGINES
    source = f"NeMo-RL {series} nemo_rl/algorithms/grpo.py"
    sync = f"{source} (grpo_train, validate, refit_policy_generation)"
    tree = TimerTree("nemo-rl", series, engines, _phases(series), sync, beside=_BESIDE)
    if series == "0.3":
        return (tree,)
    overlapping = overlapping_tree(
        "nemo-rl",
        series,
        engines,
        f"{source} (async_grpo_train)",
        (_TOTAL,),
        "Wall clock of one training step on the driver, with its wait for samples (exposed_generation).",
        mode="async",
        beside=_BESIDE,
        overlap="a collector generates while steps train (grpo.async_grpo)",
        marks=(TIMERS + "exposed_generation", TIMERS + "weight_sync"),
    )
    return (tree, overlapping)


@dataclass
class _Blocks:
    """Counts a console's steps over its epochs; in each epoch NeMo-RL counts from 1."""

    epoch: int = 1
    before: int = 0
    """Steps of earlier epochs."""
    step: int = 0
    numbers: dict[str, PrintedNumber] = field(default_factory=dict)
    line: int = 0
    first_head: int = 0
    """The line of the first step's head; 0 before it."""
    placed: int = 0
    """Blocks before any head, as in a pasted excerpt."""
    headed: bool = False

    def ended(self) -> int:
        """The step of the block that ends; without a head it follows the last one."""
        if not self.headed and self.first_head:
            self.step += 1
        elif not self.headed:
            self.placed += 1
        self.headed = False
        return self.step if self.first_head else self.placed

    def head(self, kind: str, number: int, of: int, line: int) -> None:
        """A step's or an epoch's first line."""
        self.numbers = {}
        if kind == "Epoch":
            if number != self.epoch:
                self.before = self.step if number > self.epoch else 0
                self.epoch = number
            return
        if self.epoch > 1 and not self.before:
            # The log begins in a later epoch; earlier epochs had the same number of steps.
            self.before = (self.epoch - 1) * of
        self.step, self.headed, self.first_head = self.before + number, True, self.first_head or line


def _read(parts: Iterator[Printout], path: Path, blocks: _Blocks) -> Iterator[StepRecord]:
    for part in parts:
        text = part.text
        if "=====" in text and (head := _HEAD.search(text)) is not None:
            if TIMERS + _TOTAL in blocks.numbers:
                yield _record(blocks, path)
            blocks.head(head[1], int(head[2]), int(head[3]), part.line)
        elif "•" in text and (entry := _ENTRY.search(text)) is not None:
            number = parse_number(entry[2])
            # A number at the end of a file without a line break may be truncated.
            if number is None or not part.ended:
                continue
            name = _ENTRIES.get(entry[1])
            if name is not None and TIMERS + _TOTAL in blocks.numbers:
                yield _record(blocks, path)
            if _STEP in text:
                blocks.line = part.line
            if name is None and TIMERS + _TOTAL in blocks.numbers and f"{entry[2]}s (" in text:
                name = TIMERS + entry[1]
            if name is not None:
                blocks.numbers[name] = number
    if TIMERS + _TOTAL in blocks.numbers:
        yield _record(blocks, path)


def _record(blocks: _Blocks, path: Path) -> StepRecord:
    """The step of a complete block; its numbers have a fixed number of decimals."""
    numbers, blocks.numbers = blocks.numbers, {}
    rounding = {name: half_digit(one.decimals) for name, one in numbers.items() if one.decimals is not None}
    scalars = {name: one.value for name, one in numbers.items()}
    return StepRecord(blocks.ended(), {}, scalars, {}, None, path, blocks.line, rounding)


def read_console(path: Path) -> Imported:
    """The steps of NeMo-RL's console under wandb's names, with half a unit of the last printed digit."""
    blocks = _Blocks()
    records = list(_read(printouts(path), path, blocks))
    read = steps_in_sequence([one for one in records if one.line > blocks.first_head], path)
    if read.records and not blocks.first_head:
        text = f"{path} has no line `==== Step 3/100 ====`: its blocks are read as steps 1 to {blocks.placed}"
        read.verdicts.append(Verdict("note", "step-by-place", text))
    return Imported(read, FORMAT)


NEMO_RL = Trainer(
    name="nemo-rl",
    label="NeMo-RL",
    engines=_ENGINES,
    keys={
        "engine": ("policy.generation.backend",),
        "model": ("policy.model_name",),
        "prompts": ("grpo.num_prompts_per_step",),
        "num_generations": ("grpo.num_generations_per_prompt",),
        "temperature": ("policy.generation.temperature",),
        "top_p": ("policy.generation.top_p",),
        # Including the engines' own GPUs.
        "nodes": ("cluster.num_nodes",),
        "gpus_per_node": ("cluster.gpus_per_node",),
    },
    trees=tuple(tree for series in ("0.3", "0.4", "0.5", "0.6", "0.7") for tree in _trees(series)),
    loop=lambda version, settings: "async" if settings.get("grpo.async_grpo.enabled") is True else "",
    formats=(
        LogFormat(
            FORMAT,
            "NeMo-RL's console, with blocks of lines `• Total step time: 12.34s`",
            read_console,
            is_step=lambda part: _STEP in part.text and _ENTRY.search(part.text) is not None,
        ),
    ),
    rows=NAMES,
    quantities={
        "reward": ("train/reward",),
        "mean_response_length": ("train/mean_gen_tokens_per_sample",),
        "gradient_norm": ("train/grad_norm",),
    },
)
