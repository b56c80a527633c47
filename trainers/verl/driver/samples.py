"""Writes sample completions from verl's own validations, with two hooks in its TaskRunner's process.

In each of verl's fit loops `_validate` passes all texts and rewards to `_dump_generations` if
`trainer.validation_data_dir` is set. The hooks set it for the validations before, halfway through and after training,
and write only the completions of the data's first prompts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.contracts import Sample
from node.samples import SAMPLES, first_rows, sample, sample_steps, write_stage


class ValidationSamples:
    """Takes `count` samples at each stage; `rewards` are the names that `compute_score` returns."""

    def __init__(self, folder: Path, count: int, rewards: Sequence[str]) -> None:
        self._path, self._count, self._rewards = folder / SAMPLES, count, tuple(rewards)
        self._taking = False

    def validate(self, original: Callable[..., Any], trainer: Any, *args: Any, **named: Any) -> Any:
        """verl's validation, with its texts dumped at the three stages."""
        settings = trainer.config.trainer
        every = max(1, int(settings.test_freq))
        if int(trainer.global_steps) not in sample_steps(int(trainer.total_training_steps), every):
            return original(trainer, *args, **named)
        users = settings.validation_data_dir
        settings.validation_data_dir = users or str(self._path)
        self._taking = True
        try:
            return original(trainer, *args, **named)
        finally:
            settings.validation_data_dir = users
            self._taking = False

    def dump(self, original: Callable[..., Any], trainer: Any, *args: Any, **named: Any) -> Any:
        """Write the samples; a folder that the user set still gets all completions."""
        given = inspect.signature(original).bind(trainer, *args, **named).arguments
        if self._taking:
            step, steps = int(trainer.global_steps), int(trainer.total_training_steps)
            write_stage(self._path, step, steps, _how(trainer.config), lambda: self._made(trainer, given))
        return None if given["dump_path"] == str(self._path) else original(trainer, *args, **named)

    def _made(self, trainer: Any, given: Mapping[str, Any]) -> tuple[list[Sample], str | None]:
        """The samples, and a note on prompts that verl's validation lacks."""
        inputs, outputs, scores = given["inputs"], given["outputs"], given["reward_extra_infos_dict"]
        longest, samples, missing = int(trainer.config.data.max_response_length), [], []
        for at, row in enumerate(first_rows(Path(str(trainer.config.data.val_files)), self._count)):
            found = place_of(row["prompt"], inputs)
            if found is None:
                missing.append(str(at))
                continue
            # verl passes no token counts: these are the text's tokens, without the end token.
            tokens = len(trainer.tokenizer(outputs[found], add_special_tokens=False)["input_ids"])
            rewards = {name: scores[name][found] for name in self._rewards if len(scores.get(name, ())) > found}
            cut_off = tokens >= longest - 1
            samples.append(sample(at, row, outputs[found], tokens=tokens, cut_off=cut_off, rewards=rewards))
        return samples, f"verl's validation has no prompt of row {', '.join(missing)}" if missing else None


def place_of(prompt: Sequence[Mapping[str, Any]], inputs: Sequence[str]) -> int | None:
    """The index of a conversation among verl's decoded prompts, which are in random order; None if it is missing.

    The chat template adds text, so it is the shortest prompt that contains all messages.
    """
    parts = [str(message["content"]).strip() for message in prompt]
    places = [at for at, text in enumerate(inputs) if all(part in text for part in parts)]
    return min(places, key=lambda at: len(inputs[at]), default=None)


def _how(config: Any) -> str:
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    return f"verl's own validation, {f'temperature {sampling.temperature:g}' if sampling.do_sample else 'greedy'}"
