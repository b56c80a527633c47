"""Puts the timers of ms-swift's GRPO trainer on a clock, so that a step has the sum of their calls.

Read from ms-swift 4.6.0 rlhf_trainers/{grpo_trainer,rollout_mixin,utils}.py. swift hands each call to wandb by itself,
where the last one of a step stands. Its phases have the names of TRL's (trainers/trl/driver/timers.py).
"""

from __future__ import annotations

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from node.engine_server import uses_server
from node.over_ranks import gather_ranks
from node.phase_clock import ROOT, sanitize
from trainers.swift.driver import colocate
from trainers.swift.driver.pipeline import last_turn
from trainers.trl.driver.timers import LOG_PROB, TrlTimers

_PHASES = {
    "_prepare_inputs": "prepare_inputs",
    "_move_model_to_vllm": "sync_weights",
    "generate": "generate",
    "_compute_rewards_per_func": "rewards",
    "log_metrics": "log_completions",
    "compute_loss": "compute_loss",
}
# They hold those above and next to nothing of their own: encoding is the rest of prepare_inputs, as with TRL.
_WHOLES = frozenset(
    {"_generate_and_score_completions", "_score_completions", "_dynamic_sampling", "_prepare_batch_inputs"}
)
DISCARDED = "discarded_completions"

_OFFLOADING = ("offload_model", "load_model", "offload_optimizer", "load_optimizer")
"""The trainer's own weights and moments on their way from the GPU and back, around a generation."""


class SwiftTimers(TrlTimers):
    """TRL's hooks, with swift's profiling contexts in place of TRL's own."""

    BATCH = "_generate_completions"

    def install(self, trainer: Any) -> None:
        """Hook swift's profiling contexts, its rewards, and what it does not time."""
        super().install(trainer)
        for method in _OFFLOADING:
            self._time(trainer, method, "offload")
        # Of the engine inside the trainer; transformers' has none.
        engine = getattr(trainer.engine, "engine", None) if colocate.is_colocated(trainer.args) else None
        if engine is not None:
            self._time(engine, "sleep", "sleep", unless="sync_weights")
            self._time_waking(engine)
        if trainer.args.async_generate:
            self._time(trainer, "_wait_queue", "wait_for_responses")
            step_alone(self._clock)
        elif uses_server(vars(trainer.args)):
            self._share_waiting(trainer)
        count = counted(trainer)
        trainer.reward_funcs = [self._timed_reward(function, count) for function in trainer.reward_funcs]

    def _time_waking(self, engine: Any) -> None:
        """Waking up for new weights is a part of their sync, as under TRL: swift does it ahead of its timer of that."""
        wake_up = engine.wake_up

        @functools.wraps(wake_up)
        def woken(*args: Any, **kwargs: Any) -> Any:
            with self._clock.phase("sync_weights" if kwargs.get("tags") == ["weights"] else "sleep"):
                return wake_up(*args, **kwargs)

        engine.wake_up = woken

    def _share_waiting(self, trainer: Any) -> None:
        """Make all processes share the seconds of rank 0, which alone talks with a server, as under TRL."""
        sync, wait = trainer._move_model_to_vllm, trainer.accelerator.wait_for_everyone

        def sync_weights(*args: Any, **kwargs: Any) -> None:
            with self._clock.phase("sync_weights"):
                sync(*args, **kwargs)
                wait()

        trainer._move_model_to_vllm = sync_weights
        self._time(trainer, "_server_rollout", "generate")

    def _hook_profiling_contexts(self) -> None:
        from swift.rlhf_trainers import grpo_trainer, rollout_mixin, utils

        @contextmanager
        def profiling_context(trainer: Any, name: str) -> Iterator[None]:
            phase = self._log_prob if name == LOG_PROB else _PHASES.get(name) or sanitize(name)
            # With async_generate a thread generates for the next step while this one trains.
            beside = threading.current_thread() is not threading.main_thread()
            if name in _WHOLES or beside or self._clock.is_open(phase):
                yield
                return
            with self._clock.phase(phase):
                yield

        for module in (utils, grpo_trainer, rollout_mixin):
            module.profiling_context = profiling_context

    def _timed_reward(self, function: Any, log_metric: Any) -> Any:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._clock.phase(sanitize(function.__name__)):
                return function(*args, log_metric=log_metric, **kwargs)

        return timed


def step_alone(clock: Any) -> None:
    """Make a `StepClock` tell the step as its only phase: the others run beside a generation that is no part of them.

    They are scalars, `overlapping_s/<phase>`.
    """
    end_step = clock.end_step

    def ended() -> tuple[dict[str, float], dict[str, float]]:
        phases, scalars = end_step()
        beside = {path.partition("/")[2]: seconds for path, seconds in phases.items() if path != ROOT}
        return {ROOT: phases[ROOT]}, scalars | {f"overlapping_s/{path}": one for path, one in beside.items()}

    clock.end_step = ended


def counted(trainer: Any) -> Callable[[str, float], None]:
    """What adds to a number of the step that rewards count.

    It is logged as under TRL: the sum over the step's calls, of which dynamic_sample makes several, and the mean over
    the processes. swift would log the mean over the calls, of one process.
    """
    counts: defaultdict[str, float] = defaultdict(float)
    log = trainer.log

    def logged(*args: Any, **kwargs: Any) -> None:
        told = gather_ranks(dict(counts), trainer.accelerator.num_processes)
        counts.clear()
        for name in sorted(set().union(*told)):
            trainer._metrics["train"][name] = [sum(one.get(name, 0.0) for one in told) / len(told)]
        log(*args, **kwargs)

    def count(name: str, number: float) -> None:
        counts[name] += number

    trainer.log = logged
    return count


def count_tokens(trainer: Any, log: Any) -> None:
    """Tell a `StepLog` of the tokens of every completion that is learned from.

    With dynamic_sample groups of equal rewards are thrown away, and others generated: their seconds stay in the
    phases, and how many they were, in all processes, is a scalar of its own. A sample keeps its tokens on its way
    between processes, and where it is learned from a step later. Of several turns all that the engine writes is the
    response, also what a scheduler cuts off, and the prompt is what the conversation has beside what is learned.
    """
    attach, generate, score = (
        getattr(trainer, name)
        for name in ("_postprocess_rollout_outputs", "_generate_completions", "_score_completions")
    )
    made = [0]
    written = _written(trainer) if trainer.multi_turn_scheduler else {}

    def attached(samples: Any, outputs: Any) -> Any:
        found = attach(samples, outputs)
        for sample, output in zip(found, outputs, strict=True):
            usage = output.response.usage
            learned = sum(map(sum, sample.response_loss_mask)) or usage.completion_tokens
            sample.prompt_tokens = usage.prompt_tokens + usage.completion_tokens - learned
            sample.written_tokens = written.pop(sample.request_id, len(last_turn(sample.response_token_ids)))
        return found

    def generated(samples: Any) -> Any:
        found = generate(samples)
        made[0] += len(found)
        return found

    def scored(samples: Any) -> Any:
        kept, mine, made[0] = score(samples), made[0], 0
        if trainer.dynamic_sample:
            # The good groups are shared out anew among the processes.
            told = gather_ranks({"made": mine}, trainer.accelerator.num_processes)
            trainer._metrics["train"][DISCARDED].append(sum(one["made"] for one in told) - len(kept) * len(told))
        log.generated(
            (sample.prompt_tokens for sample in kept),
            (sample.written_tokens for sample in kept),
        )
        return kept

    trainer._postprocess_rollout_outputs, trainer._generate_completions = attached, generated
    trainer._score_completions = scored


def _written(trainer: Any) -> Counter[str]:
    """What counts, by request, the tokens that an engine writes for this process in all turns."""
    written: Counter[str] = Counter()
    roll = trainer._rollout

    def rolled(asked: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = roll(asked, *args, **kwargs)
        for request, output in zip(trainer.samples2requests(asked), outputs, strict=True):
            written[request.uuid] += output.response.usage.completion_tokens
        return outputs

    trainer._rollout = rolled
    return written
