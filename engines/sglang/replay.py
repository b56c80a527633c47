"""SGLang alone, on a CPU, on completions of given lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines.sglang.colocate import Sglang

_OF_THE_WORKLOAD = ("model_path", "dtype", "random_seed", "tp_size", "dp_size", "pp_size", "device")


class SglangReplay:
    """SGLang's scheduler in a process of its own, as trainer trl has it; its memory is not given back between steps."""

    sleeps = False

    def __init__(self, engine: Sglang, settings: Mapping[str, Any]) -> None:
        self._engine = engine
        self._words = {key: settings[key] for key in ("temperature", "top_p")}
        self.update = engine.update_weights
        self.held = engine.settings
        self.close = engine.close

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        words = {"temperature": 0.0} if greedy else self._words
        return self._engine.tokens(
            prompts, [{**words, "max_new_tokens": length, "ignore_eos": True} for length in lengths]
        )

    def sleep(self) -> None:
        """Nothing: it keeps its memory."""

    def wake(self) -> None:
        """Nothing: it has kept its memory."""


def build(model: Path, policy: Any, settings: Mapping[str, Any], threads: int) -> SglangReplay:
    """`UserError` for a setting of SGLang that the workload has a word for, and with SGLang's words for a wrong one."""
    for name in settings["engine"]:
        if name in _OF_THE_WORKLOAD:
            raise UserError(f"options.engine.{name} of a replay follows from the workload; take it out")
    # As trainer trl has it: room for all sequences of a step and as many again, so that none waits.
    longest = settings["max_prompt_length"] + settings["max_response_length"]
    room = {"max_total_tokens": 2 * settings["prompts"] * settings["num_generations"] * longest}
    try:
        engine = Sglang(model, settings["dtype"], settings["seed"], {**room, **settings["engine"]})
    except (TypeError, ValueError) as error:
        raise UserError(f"SGLang refuses the settings (options.engine): {str(error).splitlines()[0]}") from error
    return SglangReplay(engine, settings)
