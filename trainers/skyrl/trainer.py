"""SkyRL: what its runs log. Imported, not driven.

Read in skyrl-train 0.2.0 to 0.4.0 and skyrl 0.2.0 and 0.3.0: trainer.py (train, train_critic_and_policy),
utils/utils.py (Timer), utils/tracking.py (Tracking, ConsoleLogger) and fully_async_trainer.py. 0.1 has no tree:
skyrl-train 0.1.0 and skyrl 0.1.0 nest their timers differently under one version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from common.verdicts import Verdict
from trainers.logs.dictionary_lines import PrintedRow, imported_rows, parse_row
from trainers.logs.log_files import Printout, printouts
from trainers.logs.printed import half_digit
from trainers.logs.record import TIMERS, Imported, StepRecord
from trainers.logs.restarts import steps_in_sequence
from trainers.logs.step_names import StepNames
from trainers.protocol import LogFormat, Trainer
from trainers.timers.tree import Phase, TimerTree, keyed, overlapping_tree

FORMAT = "skyrl-console"
_ENGINES = ("vllm", "sglang")
_SERIES = ("0.2", "0.3", "0.4")
NAMES = StepNames(mark="timing/step", counter="_step", total="step", timers=(("timing/", ""),))
# The tracker `console` prints `Step 3: ` and, from the next line on, a dictionary of texts with four decimals.
_BLOCK = re.compile(r"(?<![\w/])Step (\d{1,18}): *$")
_LONGEST_BLOCK = 1000
_TIMER = re.compile(r"(Started|Finished): '([\w/.-]+)'(?:, time cost: (\d+\.\d\d)s)?")
_RESUMES = re.compile(r"Resuming from global_step: (\d{1,18})\b")
_TRAINED = frozenset(("train_critic_and_policy", "run_training"))
_STEP = "Finished: 'step', time cost: "
_UPDATE = "train_critic_and_policy"
_WITHIN_UPDATE = f"step/{_UPDATE}"
_PHASES = (
    Phase("step", "Step", "Driver wall clock, with batches that dynamic sampling discards.", "other", ("step",)),
    keyed("generate", "Generate", "Responses, environments and their rewards.", "generation"),
    keyed("postprocess_generator_output", "Postprocess", "Rewards by token, and statistics.", "rewards"),
    keyed("log_train_results", "Log samples", "Uploads samples; only in the console."),
    keyed("convert_to_training_input", "Make the batch", "Pads responses into the training batch."),
    keyed("fwd_logprobs_values_reward", "Log-probs", "Policy, reference, values and a reward model.", "log-probs"),
    keyed("apply_reward_kl_penalty", "KL penalty", "Subtracts the penalty from the rewards.", "rewards"),
    keyed("compute_advantages_and_returns", "Advantages", "Group statistics and advantages."),
    keyed("dump_data_batch", "Dump the batch", "Writes it to a file; only in the console."),
    keyed(_UPDATE, "Update", "The policy's update, and a critic's.", "loss+backward"),
    keyed("critic_train", "Train critic", "None with GRPO.", "loss+backward", _WITHIN_UPDATE),
    keyed("policy_train", "Train policy", "Forward, backward and the optimizer.", "loss+backward", _WITHIN_UPDATE),
    keyed("policy_critic_overlap_train", "Train both", "Policy and critic.", "loss+backward", _WITHIN_UPDATE),
    keyed("save_checkpoints", "Save checkpoint", "The step waits for it.", occasional=True),
    keyed(
        "cleanup_old_checkpoints", "Delete checkpoints", "Old ones.", within="step/save_checkpoints", occasional=True
    ),
    keyed("save_hf_model", "Save model", "The step waits for it.", occasional=True),
    keyed("update_ref_with_policy", "Update reference", "At an epoch's end.", occasional=True),
    keyed("sync_weights", "Sync weights", "Hands the engines the new weights.", "weight sync"),
    keyed("offload_policy_model_to_cpu", "Offload policy", "0.2 and 0.3; only in the console.", "weight sync"),
)


def _trees(series: str) -> tuple[TimerTree, TimerTree]:
    source = f"SkyRL {series} trainer.py (train, train_critic_and_policy), utils/utils.py (Timer)"
    return (
        TimerTree("skyrl", series, _ENGINES, _PHASES, source, beside=(("eval", "s", "outside_step_s/*"),)),
        overlapping_tree(
            "skyrl",
            series,
            _ENGINES,
            f"SkyRL {series} fully_async_trainer.py (train)",
            ("step",),
            "Wall clock of one step on the trainer, with its wait for responses.",
            mode="fully_async",
            overlap="workers generate while the trainer trains",
            marks=(TIMERS + "wait_for_generation_buffer", TIMERS + "run_training"),
        ),
    )


def _blocks(parts: Iterable[Printout]) -> Iterator[PrintedRow]:
    """The dictionaries that the tracker prints, also those whose end is missing."""
    head: tuple[int, Printout] | None = None
    lines: list[str] = []
    for part in parts:
        begins = _BLOCK.search(part.text) if "Step " in part.text else None
        if begins is not None:
            if head is not None and lines:
                yield parse_row("\n".join(lines), head[0], head[1].line)
            head, lines = (int(begins[1]), part), []
        elif head is not None and part.actor == head[1].actor:
            lines.append(part.text)
            if part.text.rstrip().endswith("}") or len(lines) > _LONGEST_BLOCK:
                yield parse_row("\n".join(lines), head[0], head[1].line)
                head = None
    if head is not None and lines:
        yield parse_row("\n".join(lines), head[0], head[1].line)


def _timed(parts: Iterable[Printout], path: Path) -> Iterator[StepRecord]:
    """The steps of the timers' own lines: `Finished: 'generate', time cost: 12.34s`.

    A step without an update discarded all its responses (dynamic sampling); its seconds count in the next step.
    """
    step, inside, from_step = 0, False, 0
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for part in parts:
        if "Resuming from" in part.text and (resumes := _RESUMES.search(part.text)) is not None:
            from_step = int(resumes[1])
        if "ed: '" not in part.text or (timer := _TIMER.search(part.text)) is None:
            continue
        event, name, cost = timer.groups()
        if name == "init_weight_sync_state" and event == "Started":
            # The trainer starts, from a checkpoint if the log names one before the first step.
            step, inside, seconds, calls = 0, False, {}, {}
        if event == "Started":
            if name == "step":
                step, from_step, inside = from_step or step, 0, True
        elif inside and cost is not None:
            seconds[name] = seconds.get(name, 0.0) + float(cost)
            calls[name] = calls.get(name, 0) + 1
            if name == "step":
                inside = False
                if _TRAINED & seconds.keys():
                    step += 1
                    scalars = {TIMERS + key: value for key, value in seconds.items()}
                    rounding = {TIMERS + key: half_digit(2) * times for key, times in calls.items()}
                    yield StepRecord(step, {}, scalars, {}, None, path, part.line, rounding)
                    seconds, calls = {}, {}


def _noting_restarts(parts: Iterable[Printout], resumed_at: set[int]) -> Iterator[Printout]:
    """The same parts; the first step after each restart is added to `resumed_at`."""
    for part in parts:
        if "Resuming from" in part.text and (resumes := _RESUMES.search(part.text)) is not None:
            resumed_at.add(int(resumes[1]) + 1)
        yield part


def read_console(path: Path) -> Imported:
    """The steps that SkyRL's tracker prints; without them, those of its timers' lines.

    Timer lines have no step number: they count from 1, or from the checkpoint that the log names.
    """
    resumed_at: set[int] = set()
    parts = _noting_restarts(printouts(path), resumed_at)
    found = imported_rows(_blocks(parts), path, FORMAT, NAMES, resumed_at=resumed_at)
    if found.read.records:
        return found
    read = steps_in_sequence(list(_timed(printouts(path), path)), path, resumed_at)
    if read.records:
        text = (
            f"{path}: its timer lines have no step numbers; steps count from 1, or from the checkpoint that the log "
            "names. If the head of the log is missing, the numbers are wrong: import the wandb run instead"
        )
        read.verdicts.append(Verdict("note", "step-by-place", text))
    return Imported(read, FORMAT)


SKYRL = Trainer(
    name="skyrl",
    label="SkyRL",
    engines=_ENGINES,
    keys={
        "engine": ("generator.inference_engine.backend", "generator.backend"),
        "model": ("trainer.policy.model.path",),
        "prompts": ("trainer.train_batch_size",),
        "num_generations": ("generator.n_samples_per_prompt",),
        "max_response_length": ("generator.sampling_params.max_generate_length",),
        "temperature": ("generator.sampling_params.temperature",),
        "top_p": ("generator.sampling_params.top_p",),
    },
    trees=tuple(tree for series in _SERIES for tree in _trees(series)),
    formats=(
        LogFormat(
            FORMAT,
            "SkyRL's console, with lines Finished: 'step', time cost: 12.34s",
            read_console,
            is_step=lambda part: _STEP in part.text or "'timing/step': '" in part.text,
        ),
    ),
    rows=NAMES,
    quantities={
        "reward": ("reward/avg_raw_reward",),
        "mean_response_length": ("generate/avg_num_tokens",),
        "max_response_length": ("generate/max_num_tokens",),
    },
)
