"""Makes SGLang TRL's rollout engine through `rollout_func`, under the same conditions as TRL's own engines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines.sglang.client import Sglang
from trainers.trl import hooks


def sampling(args: Any, stop: int | None) -> dict[str, Any]:
    """GRPOConfig's sampling settings as SGLang's parameters; `stop` is the token that ends a completion."""
    if args.generation_kwargs and (unknown := set(args.generation_kwargs) - _SAMPLING):
        raise UserError(
            f"generation_kwargs.{sorted(unknown)[0]} is no sampling parameter of SGLang; allowed: "
            f"{', '.join(sorted(_SAMPLING))}"
        )
    parameters = {
        "max_new_tokens": args.max_completion_length,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p,
        "repetition_penalty": args.repetition_penalty,
        "stop_token_ids": [] if stop is None else [stop],
        **(args.generation_kwargs or {}),
    }
    # In TRL 0 and None mean "all"; in SGLang that is -1.
    return {**parameters, "top_k": parameters["top_k"] or -1, "min_p": parameters["min_p"] or 0.0}


_SAMPLING = frozenset({"frequency_penalty", "presence_penalty", "ignore_eos", "min_new_tokens", "top_k", "min_p"})


class SglangRollout:
    """The function that TRL calls with a step's repeated prompts, and its engine."""

    def __init__(self, engine: Any, parameters: Mapping[str, Any]) -> None:
        self.engine = engine
        self._parameters = parameters
        self._synced: int | None = None

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        # TRL's template and tokens, as for its own engines.
        prompt_ids = hooks.TOKENIZE.get(trainer)(prompts)[0]
        profiling_context = hooks.CONTEXT.get()
        # An engine that slept has no weights.
        if self.engine.sleeps or trainer.state.global_step != self._synced:
            with profiling_context(trainer, "sync_weights"):
                if self.engine.sleeps and self._synced is not None:
                    self.engine.wake()
                self.engine.update_weights(trainer.accelerator.unwrap_model(trainer.model).named_parameters())
            self._synced = trainer.state.global_step
        with profiling_context(trainer, "SGLang.generate"):
            completion_ids, log_probs = self.engine.generate(prompt_ids, self._parameters)
        if self.engine.sleeps:
            with profiling_context(trainer, "sleep"):
                self.engine.sleep()
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": log_probs}


def sglang_rollout(
    args: Any, settings: Mapping[str, Any], model: Path, dtype: str, resumed_from: int, log: Path
) -> SglangRollout:
    """SGLang's server, started with the run's seed, its settings and the workload's number format.

    A resumed run gets another seed, because SGLang cannot continue its random stream.
    """
    from transformers import AutoTokenizer

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # it warns of rollout_func at each start
    parameters = sampling(args, AutoTokenizer.from_pretrained(str(model)).eos_token_id)
    return SglangRollout(Sglang(model, dtype, args.seed + 1000 * resumed_from, settings, log), parameters)
