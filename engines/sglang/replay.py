"""SGLang alone, on completions of given lengths: on a CPU as trainer trl has it, on a GPU as it is released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError

if TYPE_CHECKING:
    from engines.sglang.colocate import Sglang

STARTS_ITS_SHARDS = True
"""The first process of a tensor parallel engine has it, the others leave it their GPUs, as verl has it."""
_OF_THE_WORKLOAD = ("model_path", "dtype", "random_seed", "tp_size", "dp_size", "pp_size", "device")


class SglangReplay:
    """SGLang's scheduler in a process of its own; it sleeps between steps with `enable_memory_saver`, on a GPU."""

    def __init__(self, engine: Sglang, settings: Mapping[str, Any]) -> None:
        self._engine, self.sleeps = engine, engine.sleeps
        self._words = {key: settings[key] for key in ("temperature", "top_p")}
        self.update = engine.update_weights
        self.settings = engine.settings
        self.close = engine.close

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        words = {"temperature": 0.0} if greedy else self._words
        return self._engine.tokens(
            prompts, [{**words, "max_new_tokens": length, "ignore_eos": True} for length in lengths]
        )

    def sleep(self) -> None:
        """Give memory back; on a CPU it never sleeps."""
        self._engine.sleep()

    def wake(self) -> None:
        """Take it again."""
        self._engine.wake()


def build(model: Path, policy: Any, settings: Mapping[str, Any], threads: int) -> SglangReplay:
    """`UserError` for a setting of SGLang that the workload has a word for, and with SGLang's words for a wrong one."""
    import torch

    for name in settings["engine"]:
        if name in _OF_THE_WORKLOAD:
            raise UserError(f"options.engine.{name} of a replay follows from its other words; take it out")
    longest = settings["max_prompt_length"] + settings["max_response_length"]
    own = settings["engine"]
    engine: Sglang
    try:
        if torch.cuda.is_available():
            from engines.sglang.gpu import SglangOnGpu

            shards = {"tp_size": int(settings.get("tensor_parallel", 1))}
            engine = SglangOnGpu(model, settings["dtype"], settings["seed"], {**shards, **own})
        else:
            from engines.sglang.colocate import Sglang

            # As trainer trl has it: room for all sequences of a step and as many again, so that none waits.
            room = {"max_total_tokens": 2 * settings["prompts"] * settings["num_generations"] * longest}
            engine = Sglang(model, settings["dtype"], settings["seed"], {**room, **own})
    except (TypeError, ValueError) as error:
        raise UserError(f"SGLang refuses the settings (options.engine): {str(error).splitlines()[0]}") from error
    return SglangReplay(engine, settings)
