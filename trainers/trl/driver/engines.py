"""Gives TRL's rollout engines equal conditions: SGLang through `rollout_func`, and corrections of the vLLM that TRL
builds in its process or asks as a server."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines.sglang.client import Sglang
from engines.vllm.cpu import FromFile, reload_weights
from engines.vllm.settings import final_settings
from node import engine_server
from node.hardware import importing
from node.seeds import engine_seed
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
        self.count_shortened: Callable[[int], None] = lambda count: None
        """Gets the number of responses of each batch that the engine's cache cut short."""

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
            answer = self.engine.generate(prompt_ids, self._parameters)
        with profiling_context(trainer, "SGLang.extract"):
            log_probs = answer.log_probs()
            self._report(answer.shortened(self._parameters["max_new_tokens"]), len(prompt_ids))
        if self.engine.sleeps:
            with profiling_context(trainer, "sleep"):
                self.engine.sleep()
        return {"prompt_ids": prompt_ids, "completion_ids": answer.token_ids, "logprobs": log_probs}

    def _report(self, shortened: int, responses: int) -> None:
        self.count_shortened(shortened)
        if shortened:
            room = self.engine.settings().get("max_total_tokens")
            print(
                f"SGLang shortened {shortened} of {responses} responses: its cache has room for {room or 'too few'} "
                "tokens, prompt and response of a sequence together. Raise options.sglang_max_total_tokens or "
                "sglang_mem_fraction_static, or lower workload.max_response_length",
                flush=True,
            )


def sglang_rollout(
    args: Any, settings: Mapping[str, Any], model: Path, dtype: str, resumed_from: int, log: Path
) -> SglangRollout:
    """SGLang's server, started with the run's seed, its settings and the workload's number format."""
    from transformers import AutoTokenizer

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # it warns of rollout_func at each start
    parameters = sampling(args, AutoTokenizer.from_pretrained(str(model)).eos_token_id)
    return SglangRollout(Sglang(model, dtype, engine_seed(args.seed, resumed_from), settings, log), parameters)


def pass_seed_and_dtype(seed: int, resumed_from: int, dtype: str) -> None:
    """Make TRL 1.16 build its colocated vLLM with the run's seed and the workload's dtype.

    trl/generation/vllm_generation.py builds `LLM(seed=rank // tensor_parallel_size, ...)` for every run, and vLLM
    reseeds the process's global generators with it, from which it samples. Here that number is the engine's process. A
    seed per request would make all completions of a prompt equal.

    TRL keeps vLLM's dtype "auto", which loads a float32 checkpoint as bfloat16 (vllm/config/model.py,
    `_resolve_auto_dtype`), unlike transformers.
    """
    with importing():
        original = hooks.LLM.get()

    @functools.wraps(original, updated=())
    def build(*args: Any, **kwargs: Any) -> Any:
        own = engine_seed(seed, resumed_from, int(kwargs.get("seed") or 0))
        return original(*args, **{**kwargs, "seed": own, "dtype": dtype})

    hooks.LLM.replace(build)


def sync_through_reload() -> None:
    """Make TRL's colocated weight sync use vLLM's own reload on a CPU (engines/vllm/cpu.py, `reload_weights`).

    TRL 1.16 calls `model.load_weights` for every parameter and fails, as packed parameters have no `weight_loader`.
    """

    def sync_weights(original: Callable[..., None], generation: Any) -> None:
        if hooks.MODE.get(generation) != "colocate":
            original(generation)
            return
        reload_weights(hooks.COLOCATED.get(generation).llm_engine, hooks.NAMED_PARAMETERS.get(generation)())

    hooks.SYNC_WEIGHTS.wrap(sync_weights)


def send_secret() -> None:
    """Make TRL's client send the attempt's secret, also in the first request, which its constructor sends."""

    def check_server(original: Callable[..., None], client: Any, *args: Any, **named: Any) -> None:
        engine_server.send_secret(hooks.SESSION.get(client))
        original(client, *args, **named)

    hooks.CHECK_SERVER.wrap(check_server)


def server_settings(client: Any, dtype: str) -> dict[str, Any]:
    """The server's final settings, from TRL's client."""
    return {"mode": "server", **final_settings(hooks.SERVER_INFO.get(client)(), dtype)}


def transfer_through_file(folder: Path) -> None:
    """Make TRL's client send new weights as a file in a folder that the server can read.

    TRL 1.16's client rejects all devices but CUDA (trl/generation/vllm_client.py, `init_communicator`).
    """
    from safetensors.torch import save_file

    def update_named_params(client: Any, metadata: Any, named_params: Iterable[tuple[str, Any]]) -> None:
        path = folder / "weights.safetensors"
        # The format does not support tensors that share memory.
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in named_params}, path)
        request = {"method": FromFile.load_from_file.__name__, "args": [str(path)]}
        hooks.POST.get(client)(f"{hooks.BASE_URL.get(client)}/collective_rpc", json=request)
        with suppress(OSError):  # the next weights replace it
            path.unlink()

    hooks.CONNECT.replace(lambda client, device=None: None)
    hooks.UPDATE.replace(update_named_params)
