"""Writes sample completions from verl's own validations, by two hooks in the process of its TaskRunner.

In each of verl's fit loops `_validate` hands all its texts and rewards to `_dump_generations`, where
`trainer.validation_data_dir` is set. It is set for the validations before, halfway through and after training, and the
completions of the data's first prompts are written instead of all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.contracts import Sample
from node.samples import SAMPLES, first_rows, sample, sample_steps, write_stage


class ValidationSamples:
    """Takes `count` samples of a stage; `rewards` are the workload's by name, as `compute_score` gives them."""

    def __init__(self, folder: Path, count: int, rewards: Sequence[str]) -> None:
        self._path, self._count, self._rewards = folder / SAMPLES, count, tuple(rewards)
        self._taking = False

    def validate(self, original: Callable[..., Any], trainer: Any, *args: Any, **named: Any) -> Any:
        """verl's validation, whose texts are handed over at the three stages."""
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
        """Write the samples; a folder of the user's gets all completions beside them."""
        given = inspect.signature(original).bind(trainer, *args, **named).arguments
        if self._taking:
            step, steps = int(trainer.global_steps), int(trainer.total_training_steps)
            write_stage(self._path, step, steps, _how(trainer.config), lambda: self._made(trainer, given))
        return None if given["dump_path"] == str(self._path) else original(trainer, *args, **named)

    def _made(self, trainer: Any, given: Mapping[str, Any]) -> tuple[list[Sample], str | None]:
        """The samples, and which prompts verl has left out."""
        inputs, outputs, told = given["inputs"], given["outputs"], given["reward_extra_infos_dict"]
        longest, samples, missing = int(trainer.config.data.max_response_length), [], []
        for at, row in enumerate(first_rows(Path(str(trainer.config.data.val_files)), self._count)):
            found = place_of(row["prompt"], inputs)
            if found is None:
                missing.append(str(at))
                continue
            # verl counts no tokens here: these are the text's, and the end token is not among them.
            tokens = len(trainer.tokenizer(outputs[found], add_special_tokens=False)["input_ids"])
            rewards = {name: told[name][found] for name in self._rewards if len(told.get(name, ())) > found}
            cut_off = tokens >= longest - 1
            samples.append(sample(at, row, outputs[found], tokens=tokens, cut_off=cut_off, rewards=rewards))
        return samples, f"verl's validation has no prompt of row {', '.join(missing)}" if missing else None


def place_of(prompt: Sequence[Mapping[str, Any]], inputs: Sequence[str]) -> int | None:
    """Where a conversation is among verl's decoded prompts, whose order is chance; None where it is not.

    The template adds words, so that the shortest that has all its messages is it.
    """
    parts = [str(message["content"]).strip() for message in prompt]
    places = [at for at, text in enumerate(inputs) if all(part in text for part in parts)]
    return min(places, key=lambda at: len(inputs[at]), default=None)


def _how(config: Any) -> str:
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    return f"verl's own validation, {f'temperature {sampling.temperature:g}' if sampling.do_sample else 'greedy'}"
