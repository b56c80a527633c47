"""Replays completions of given lengths with SGLang's server, as in trainer trl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.sglang.client import Sglang


class SglangReplay:
    """An SGLang engine; on a GPU with `enable_memory_saver` it sleeps between steps."""

    def __init__(self, engine: Sglang, settings: Mapping[str, Any]) -> None:
        self._engine, self.sleeps = engine, engine.sleeps
        self._sampling = {key: settings[key] for key in ("temperature", "top_p")}
        self.update, self.settings, self.close = engine.update_weights, engine.settings, engine.close
        self.sleep, self.wake = engine.sleep, engine.wake

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        sampling = {"temperature": 0.0} if greedy else self._sampling
        each = [{**sampling, "max_new_tokens": n, "ignore_eos": True} for n in lengths]
        return self._engine.generate(prompts, each, log_probs=False).token_ids


def build(model: Path, policy: Any, settings: Mapping[str, Any], threads: int, log: Path) -> SglangReplay:
    """Build the engine; `UserError` for settings that SGLang rejects."""
    import torch

    own = settings["engine"]
    if torch.cuda.is_available():
        given = {"tp_size": int(settings.get("tensor_parallel", 1))}
    else:
        # As in trainer trl: cache for twice the sequences of a step, so that none waits.
        longest = settings["max_prompt_length"] + settings["max_response_length"]
        given = {"max_total_tokens": 2 * settings["prompts"] * settings["num_generations"] * longest}
    return SglangReplay(Sglang(model, settings["dtype"], settings["seed"], {**given, **own}, log), settings)
