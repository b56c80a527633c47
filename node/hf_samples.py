"""Generates sample completions of a policy that transformers' Trainer trains.

The prompts are the first rows of the test data, or of the training data. All runs use the same seed. The trainer's own
model generates, not the engine, and the random state is restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import GenerationConfig, StoppingCriteria, TrainerCallback

from common.contracts import Sample
from node.exit_codes import StopRequest, one_line
from node.rewards import RewardFunction
from node.samples import SAMPLES, first_rows, sample, sample_steps, write_stage
from node.step_log import StepLog

SEED = 0
MOST_S = 300.0
"""Time limit of one generation, well below the limits of processes that wait for the next step."""


class SampleLog(TrainerCallback):  # type: ignore[misc]
    """Writes samples.jsonl before the first step, halfway and after the last step.

    Samples are taken when the next step begins, after the previous one is logged and saved, so a resumed run takes the
    samples that its earlier attempts missed. `workload` has `samples`, `temperature`, `top_p` and
    `max_response_length`; `generating` is a context around the generation.
    """

    def __init__(
        self,
        trainer: Any,
        workload: Mapping[str, Any],
        data: Path,
        rewards: Sequence[RewardFunction],
        folder: Path,
        log: StepLog,
        stop: StopRequest,
        generating: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._trainer, self._workload, self._data = trainer, workload, data
        self._rewards, self._path, self._log = rewards, folder / SAMPLES, log
        self._stop, self._generating = stop, generating

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step < state.max_steps and state.global_step in sample_steps(state.max_steps):
            self._take(state.global_step, state.max_steps)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == state.max_steps:
            self._take(state.global_step, state.max_steps)

    def _take(self, step: int, steps: int) -> None:
        how = f"the trainer's own model, temperature {float(self._workload['temperature']):g}, seed {SEED}"
        accelerator = self._trainer.accelerator
        with self._log.outside_step("samples"):
            if accelerator.is_main_process:
                write_stage(self._path, step, steps, how, self._samples)
            elif isinstance(self._trainer.model, FSDPModule):  # each forward pass needs the weights of all processes
                self._generate([row["prompt"] for row in self._rows()], _Limit(self._stop))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # the engine may need the memory
            accelerator.wait_for_everyone()  # otherwise the others would wait within the next step

    def _rows(self) -> list[dict[str, Any]]:
        return first_rows(self._data, int(self._workload["samples"]))

    def _samples(self) -> tuple[list[Sample], str | None]:
        rows = self._rows()
        limit = _Limit(self._stop)
        generated = self._generate([row["prompt"] for row in rows], limit)
        if self._stop.requested:
            return [], "the job was asked to stop"
        ids = [ids for ids, _ in generated]
        texts = self._trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        problem, rewards = f"stopped after {MOST_S:.0f} s; no reward is computed" if limit.is_over else None, {}
        if problem is None:
            try:
                columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
                prompts = columns.pop("prompt")
                common = {"completions": texts, "prompts": prompts, "completion_ids": ids, "trained": False}
                rewards = {reward.__name__: reward(**common, **columns) for reward in self._rewards}
            except Exception as error:  # for example a user's function that fails on all of them
                problem = f"not scored: {one_line(error)}"
        samples = [
            sample(
                at,
                row,
                texts[at],
                tokens=len(ids[at]) - ended,
                cut_off=not ended,
                rewards={name: values[at] for name, values in rewards.items()},
            )
            for at, (row, (_, ended)) in enumerate(zip(rows, generated, strict=True))
        ]
        return samples, problem

    def _generate(self, prompts: Sequence[Any], limit: _Limit) -> list[tuple[list[int], bool]]:
        """Each prompt's completion as token ids with its end token, and whether it has an end token."""
        tokenizer, accelerator = self._trainer.processing_class, self._trainer.accelerator
        model = accelerator.unwrap_model(self._trainer.model)
        texts = tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, tokenize=False)
        ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
        batch = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt").to(accelerator.device)
        ends = model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [tokenizer.eos_token_id if ends is None else ends])
        config = _config(self._workload, sorted(ends), tokenizer.pad_token_id)
        devices = [accelerator.device] if accelerator.device.type == "cuda" else []
        was_training = model.training
        model.eval()
        try:
            with torch.random.fork_rng(devices), torch.no_grad(), self._generating():
                torch.manual_seed(SEED)
                output = model.generate(**batch, generation_config=config, stopping_criteria=[limit])
        finally:
            model.train(was_training)
            # A forward pass without a backward pass leaves the last layers gathered. TRL 1.16 then fails: it sends vLLM
            # each parameter's full_tensor (trl/generation/vllm_generation.py, _iter_fsdp2_params).
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return [_until_end(row, ends) for row in output[:, batch["input_ids"].shape[1] :].tolist()]


class _Limit(StoppingCriteria):  # type: ignore[misc]
    """Ends a generation on a stop request, and after `MOST_S`."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop, self._until = stop, time.monotonic() + MOST_S
        self.is_over = False

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self.is_over = self.is_over or time.monotonic() > self._until
        over = self.is_over or self._stop.requested
        return torch.full((input_ids.shape[0],), over, dtype=torch.bool, device=input_ids.device)


def _config(workload: Mapping[str, Any], ends: Sequence[int], pad: int | None) -> GenerationConfig:
    """The workload's sampling, without the settings of the model's generation_config.json."""
    return GenerationConfig(
        max_new_tokens=int(workload["max_response_length"]),
        do_sample=True,
        temperature=float(workload["temperature"]),
        top_p=float(workload["top_p"]),
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        eos_token_id=list(ends),
        pad_token_id=ends[0] if pad is None else pad,
        disable_compile=True,
    )


def _until_end(ids: list[int], ends: set[int]) -> tuple[list[int], bool]:
    """A row of a batch up to its end token, without the padding."""
    at = next((at for at, token in enumerate(ids) if token in ends), None)
    return (ids, False) if at is None else (ids[: at + 1], True)
