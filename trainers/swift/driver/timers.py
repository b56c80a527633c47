"""Adds up the timers of ms-swift's GRPO trainer over a step's calls, under the phases of TRL (trainers/trl/driver).

Source: ms-swift 4.6.0 rlhf_trainers/{grpo_trainer,rollout_mixin,utils}.py. swift itself logs each call to wandb, which
keeps only a step's last call.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from node.engine_server import uses_server
from node.over_ranks import gather_ranks
from node.phase_clock import ROOT, sanitize
from trainers.swift import hooks
from trainers.swift.driver import colocate
from trainers.swift.driver.pipeline import last_turn
from trainers.trl.driver.timers import TrlTimers

DISCARDED = "discarded_completions"
TIMERS: Mapping[str, str] = {
    "_prepare_inputs": "prepare_inputs",
    "_move_model_to_vllm": "sync_weights",
    "generate": "generate",
    "_compute_rewards_per_func": "rewards",
    "log_metrics": "log_completions",
    "compute_loss": "compute_loss",
    # These contain the phases above and almost no time of their own: encoding is the rest of prepare_inputs, as in TRL.
    **dict.fromkeys(("_generate_and_score_completions", "_score_completions"), ""),
    **dict.fromkeys(("_dynamic_sampling", "_prepare_batch_inputs"), ""),
}
"""A timer in swift's profiling contexts -> our phase; empty: a part of the phases around it."""

_OFFLOADING = (hooks.OFFLOAD_MODEL, hooks.LOAD_MODEL, hooks.OFFLOAD_OPTIMIZER, hooks.LOAD_OPTIMIZER)
"""Methods that move the trainer's weights and moments off the GPU and back, around a generation."""


class SwiftTimers(TrlTimers):
    """TRL's hooks on swift's profiling contexts."""

    TRAINING_STEP, LOG_PROB, BATCH = hooks.TRAINING_STEP, hooks.LOG_PROB, hooks.BATCH

    def install(self, trainer: Any) -> None:
        """Hook swift's profiling contexts, its rewards, and the methods that it does not time."""
        super().install(trainer)
        for method in _OFFLOADING:
            self._time(trainer, method, "offload")
        # Only a colocated vLLM sleeps.
        engine = hooks.VLLM_ENGINE.find(trainer.engine) if colocate.is_colocated(trainer.args) else None
        if engine is not None:
            self._time(engine, "sleep", "sleep", unless="sync_weights")
            self._time_waking(engine)
        if trainer.args.async_generate:
            self._time(trainer, hooks.WAIT, "wait_for_responses")
            log_only_the_step(self._clock)
        elif uses_server(vars(trainer.args)):
            self._time_server_calls(trainer)
        count = log_counts(trainer)
        trainer.reward_funcs = [self._timed_reward(function, count) for function in trainer.reward_funcs]

    def _time_waking(self, engine: Any) -> None:
        """Count waking up for new weights as weight sync, as in TRL; swift wakes the engine before its timer starts."""
        wake_up = engine.wake_up

        @functools.wraps(wake_up)
        def woken(*args: Any, **kwargs: Any) -> Any:
            with self._clock.phase("sync_weights" if kwargs.get("tags") == ["weights"] else "sleep"):
                return wake_up(*args, **kwargs)

        engine.wake_up = woken

    def _time_server_calls(self, trainer: Any) -> None:
        """Give all processes the seconds of rank 0, the only one that calls the server, as in TRL."""
        wait = trainer.accelerator.wait_for_everyone

        def sync_weights(sync: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            with self._clock.phase("sync_weights"):
                sync(*args, **kwargs)
                wait()

        hooks.SYNC_WEIGHTS.wrap(sync_weights, trainer)
        self._time(trainer, hooks.WITH_SERVER, "generate")

    def _hook_profiling_contexts(self) -> None:
        @contextmanager
        def profiling_context(trainer: Any, name: str) -> Iterator[None]:
            phase = self._log_prob if name == self.LOG_PROB.attribute else TIMERS.get(name) or sanitize(name)
            # With async_generate a thread generates for the next step during training.
            other_thread = threading.current_thread() is not threading.main_thread()
            if TIMERS.get(name) == "" or other_thread or self._clock.is_open(phase):
                yield
                return
            with self._clock.phase(phase):
                yield

        for hook in (hooks.PROFILING, hooks.PROFILING_TRAINER, hooks.PROFILING_ROLLOUT):
            hook.replace(profiling_context)

    def _timed_reward(self, function: Any, log_metric: Any) -> Any:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._clock.phase(sanitize(function.__name__)):
                return function(*args, log_metric=log_metric, **kwargs)

        return timed


def log_only_the_step(clock: Any) -> None:
    """Make a `StepClock` report the step as its only phase; the others overlap the generation for the next step.

    They become scalars, `overlapping_s/<phase>`.
    """
    end_step = clock.end_step

    def ended() -> tuple[dict[str, float], dict[str, float]]:
        phases, scalars = end_step()
        others = {f"overlapping_s/{path.partition('/')[2]}": s for path, s in phases.items() if path != ROOT}
        return {ROOT: phases[ROOT]}, scalars | others

    clock.end_step = ended


def log_counts(trainer: Any) -> Callable[[str, float], None]:
    """Log the numbers that rewards count in a step, and return the function that adds to one.

    As in TRL, the log gets the sum over the step's calls (dynamic_sample makes several) and the mean over the
    processes. swift itself would log one process's mean over the calls.
    """
    counts: defaultdict[str, float] = defaultdict(float)

    def logged(log: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        by_rank = gather_ranks(dict(counts), trainer.accelerator.num_processes)
        counts.clear()
        for name in sorted(set().union(*by_rank)):
            hooks.METRICS.get(trainer)["train"][name] = [sum(one.get(name, 0.0) for one in by_rank) / len(by_rank)]
        log(*args, **kwargs)

    def count(name: str, number: float) -> None:
        counts[name] += number

    hooks.LOG.wrap(logged, trainer)
    return count


def count_tokens(trainer: Any, log: Any) -> None:
    """Report the prompt and response tokens of all completions that are learned from to a `StepLog`.

    - dynamic_sample discards groups of equal rewards and generates others. Their seconds stay in the phases; their
      number in all processes is a scalar of its own.
    - A sample carries its tokens between processes, and to a later step that learns from it.
    - With several turns the response is everything that the engine generates, including what a scheduler removes. The
      prompt is the rest of the conversation that is not learned.
    """
    generated_count = [0]
    written = _count_written(trainer) if trainer.multi_turn_scheduler else {}

    def attached(attach: Callable[..., Any], samples: Any, outputs: Any) -> Any:
        found = attach(samples, outputs)
        for sample, output in zip(found, outputs, strict=True):
            usage = output.response.usage
            learned = sum(map(sum, sample.response_loss_mask)) or usage.completion_tokens
            sample.prompt_tokens = usage.prompt_tokens + usage.completion_tokens - learned
            sample.written_tokens = written.pop(sample.request_id, len(last_turn(sample.response_token_ids)))
        return found

    def generated(generate: Callable[..., Any], samples: Any) -> Any:
        found = generate(samples)
        generated_count[0] += len(found)
        return found

    def scored(score: Callable[..., Any], samples: Any) -> Any:
        kept, mine, generated_count[0] = score(samples), generated_count[0], 0
        if trainer.dynamic_sample:
            # swift redistributes the kept groups among the processes.
            by_rank = gather_ranks(mine, trainer.accelerator.num_processes)
            hooks.METRICS.get(trainer)["train"][DISCARDED].append(sum(by_rank) - len(kept) * len(by_rank))
        log.generated((sample.prompt_tokens for sample in kept), (sample.written_tokens for sample in kept))
        return kept

    hooks.OUTPUTS.wrap(attached, trainer)
    hooks.BATCH.wrap(generated, trainer)
    hooks.SCORE.wrap(scored, trainer)


def _count_written(trainer: Any) -> Counter[str]:
    """Count, by request, the tokens that an engine generates for this process in all turns."""
    written: Counter[str] = Counter()

    def rolled(roll: Callable[..., Any], asked: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = roll(asked, *args, **kwargs)
        for request, output in zip(hooks.REQUESTS.get(trainer)(asked), outputs, strict=True):
            written[request.uuid] += output.response.usage.completion_tokens
        return outputs

    hooks.ROLLOUT.wrap(rolled, trainer)
    return written
