"""Maps TRL's timers to the phases of trainer.toml; logs each step's mismatch (source: TRL 1.16, transformers 5.17).

`step` goes from on_step_begin to on_step_end, `optimizer_step` from on_pre_optimizer_step to on_optimizer_step, so that
it is optimizer.step() alone; `training_step` is what TRL logs as step_time, summed over the accumulation window.
There is an `old_log_prob` only if samples outlive the weights or vLLM's importance sampling is corrected, a
`ref_log_prob` only if beta > 0, `extract` with a colocated vLLM and with SGLang, `sleep` with vllm_enable_sleep_mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from engines.transformers.log_probs import recording, recording_batch
from node.engine_server import uses_server
from node.hooks import Hook
from node.mismatch_sums import MismatchSums, can_compare
from node.over_ranks import WAIT
from node.phase_clock import PhaseClock, sanitize
from trainers.trl import hooks

LOG_PROB = hooks.LOG_PROB.attribute
TIMERS: Mapping[str, str] = {
    "_prepare_inputs": "prepare_inputs",
    "sync_weights": "sync_weights",
    "vLLM.generate": "generate",
    "SGLang.generate": "generate",
    "SGLang.extract": "extract",
    "transformers.generate": "generate",
    "transformers.generate_batch": "generate",
    "_calculate_rewards": "rewards",
    "compute_loss": "compute_loss",
}
"""A timer in the profiling contexts of TRL's GRPOTrainer -> our phase; those of SGLang are our own."""


def phase_name(timer: str, log_prob: str) -> str:
    """The phase of one of TRL's timers, such as `GRPOTrainer.vLLM.generate`.

    All passes for log-probabilities have the same timer; `log_prob` is the phase of the current one. An unknown timer
    keeps its own name, made valid for a path.
    """
    name = timer.partition(".")[2] or timer
    return log_prob if name == LOG_PROB else TIMERS.get(name) or sanitize(name)


def log_prob_phase(trainer: Any, model: Any, path: str) -> str:
    """The phase of the current pass for log-probabilities, by its caller and its model.

    The order of passes does not show it: TRL skips the old pass if samples are never older than the weights. The
    reference is a separate model; with LoRA it is the policy without the adapter, or with the adapter `ref`.
    """
    if "compute_loss" in path.split("/"):
        return "policy_log_prob"
    if (reference := hooks.REF_MODEL.get(trainer)) is not None:
        return "ref_log_prob" if model is reference else "old_log_prob"
    return "ref_log_prob" if _adapter_is_reference(model) else "old_log_prob"


def _adapter_is_reference(model: Any) -> bool:
    for module in model.modules():
        # An attribute of peft's BaseTunerLayer; peft may not be installed, so its class cannot be imported. Every model
        # of transformers has a method of this name.
        disabled = getattr(module, "disable_adapters", None)
        if isinstance(disabled, bool):
            return disabled or "ref" in module.active_adapters
    return False


def count_tokens(trainer: Any, log: Any) -> None:
    """Report the lengths of generated prompts and completions to a `StepLog`."""

    def generate(original: Callable[..., Any], prompts: list[Any]) -> Any:
        made = original(prompts)
        log.generated(map(len, made[0]), map(len, made[1]))
        return made

    hooks.GENERATE.wrap(generate, trainer)


class TrlTimers:
    """Hooks that open and close a `PhaseClock`'s phases in TRL. They work on every rank and need no tracker."""

    TRAINING_STEP, LOG_PROB, BATCH = hooks.TRAINING_STEP, hooks.LOG_PROB, hooks.BATCH

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._log_prob = sanitize(LOG_PROB)

    def install(self, trainer: Any) -> None:
        """Hook TRL's profiling contexts and the methods that TRL does not time."""
        self._hook_profiling_contexts()
        self._label_log_probs(trainer)
        self._time(trainer, self.TRAINING_STEP, "training_step")
        self._time(trainer.accelerator, "backward", "backward")
        if (generation := hooks.VLLM_GENERATION.find(trainer)) is not None:
            for method in ("merge_adapter", "unmerge_adapter") if hasattr(trainer.model, "merge_adapter") else ():
                self._time(trainer.model, method, "merge_adapter")
            if hooks.MODE.get(generation) == "server":
                self._time_server(generation)
            # In sleep mode vLLM wakes up and syncs inside generate(), outside TRL's own timer.
            self._time(generation, hooks.SYNC_WEIGHTS, "sync_weights")
            llm = hooks.COLOCATED.find(generation)
            for method in ("sleep", "wake_up") if llm is not None else ():
                self._time(llm, method, "sleep", unless="sync_weights")
        if trainer.accelerator.num_processes > 1 and not uses_server(vars(trainer.args)):
            self._wait_for_slowest(trainer)

    def _wait_for_slowest(self, trainer: Any) -> None:
        """Time each process's wait for the slowest engine; otherwise the next phase that gathers would include it."""
        wait = trainer.accelerator.wait_for_everyone

        def waited(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            made = generate(*args, **kwargs)
            with self._clock.phase(WAIT):
                wait()
            return made

        self.BATCH.wrap(waited, trainer)

    def _time_server(self, generation: Any) -> None:
        """Give all processes the seconds of rank 0, the only one that calls the server.

        The others would wait for new weights in `generate`, and for completions outside TRL's timer; the mean over all
        processes would be wrong for both.
        """

        def sync_weights(sync: Callable[[], None]) -> None:
            sync()
            hooks.ACCELERATOR.get(generation).wait_for_everyone()

        def timed(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with self._clock.phase("generate"):
                return generate(*args, **{**kwargs, "profiler": None})

        hooks.SYNC_WEIGHTS.wrap(sync_weights, generation)
        hooks.GENERATE_WITH_VLLM.wrap(timed, generation)

    def _hook_profiling_contexts(self) -> None:
        def timed_enter(enter: Callable[..., Any], context: Any) -> Any:
            self._clock.open(phase_name(hooks.TIMER_NAME.get(context), self._log_prob))
            return enter(context)

        def timed_leave(leave: Callable[..., Any], context: Any, *error: Any) -> Any:
            # Close first: TRL logs to the tracker as it exits, and does not time that.
            self._clock.close()
            return leave(context, *error)

        hooks.ENTER.wrap(timed_enter)
        hooks.EXIT.wrap(timed_leave)

        # TRL takes log-probabilities out of a colocated engine's answer after its own timer.
        def extracted(extract: Callable[..., Any], answer: Any) -> Any:
            with self._clock.phase("extract"):
                return extract(answer)

        hooks.EXTRACT.wrap(extracted)

    def _label_log_probs(self, trainer: Any) -> None:
        def labelled(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
            self._log_prob = log_prob_phase(trainer, model, self._clock.path)
            return original(model, *args, **kwargs)

        self.LOG_PROB.wrap(labelled, trainer)

    def _time(self, owner: Any, method: Hook | str, phase: str, unless: str | None = None) -> None:
        """Time a method as a phase, unless that phase is already open, or `unless`, which includes the method."""
        name = method if isinstance(method, str) else method.attribute
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._clock.is_open(phase) or (unless is not None and self._clock.is_open(unless)):
                return original(*args, **kwargs)
            with self._clock.phase(phase):
                return original(*args, **kwargs)

        setattr(owner, name, timed)


def log_mismatch(trainer: Any, log: Any) -> None:
    """Report the mismatch of each step to a `StepLog`, unless tokens are sampled from a filtered distribution.

    It compares the engine's log-probabilities with those of the policy's own training pass, which TRL has anyway. TRL
    logs `sampling/sampling_logp_difference` only with its correction of the difference, which changes the loss and
    needs a pass of its own. A step has one update, so the training pass has the weights that sampled the tokens.
    """
    args = trainer.args
    if not can_compare(args):
        return
    if not (args.use_vllm or trainer.rollout_func):
        _record_own_generation(trainer)
    mismatch, learned = MismatchSums(), list[Any]()

    def compute_loss(compute: Callable[..., Any], model: Any, inputs: Any) -> Any:
        learned.append(inputs)
        try:
            return compute(model, inputs)
        finally:
            learned.clear()

    def compared(compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        passed = compute(*args, **kwargs)
        if learned and (of_engine := learned[0].get("sampling_per_token_logps")) is not None:
            mask = learned[0]["completion_mask"] * learned[0].get("tool_mask", 1)
            mismatch.add(passed[0], of_engine, mask)
        return passed

    hooks.LOSS.wrap(compute_loss, trainer)
    hooks.LOG_PROB.wrap(compared, trainer)
    log.at_step_end(mismatch.taken)


def _record_own_generation(trainer: Any) -> None:
    """Have transformers' generations return log-probabilities, as those of engines do."""
    if (continuous := hooks.CONTINUOUS.get(trainer)) is not None:
        continuous.return_logprobs = True

    def generated(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if continuous is not None:
            with recording_batch(trainer.model) as rows:
                ids, _ = generate(*args, **kwargs)
            return ids, rows
        with recording(trainer.model, trainer.args.temperature) as recorder:
            ids, _ = generate(*args, **kwargs)
        return ids, recorder.rows(ids)

    hooks.BATCH.wrap(generated, trainer)
