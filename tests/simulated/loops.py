"""Simulates a loop that generates beside its training, and writes verl's log of it: its ledger is known.

Engines finish groups one after the other and wait where the queue of finished ones and theirs are full; a queue that
is full otherwise drops its oldest group. The trainer takes a batch of the oldest groups, throws away those that are
too old, and waits where too few are there.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

RESPONSES = 8
TOKENS_A_SECOND = 40.0


@dataclass
class Loop:
    """Seconds of one engine for a token are 1/`TOKENS_A_SECOND`; `train_s` are those of a step."""

    engines: int
    batch: int
    train_s: float
    queue: int
    """The most finished groups that wait."""
    too_old: int = 10**6
    """From so many policy versions on a group is thrown away."""
    blocks: bool = False
    """Whether engines wait for room in the queue, in place of dropping."""
    seed: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("generated", "trained", "stale", "dropped"), 0)
    )

    def steps(self, number: int) -> list[dict[str, float]]:
        """So many steps: seconds, waits, the mean response, and all counts and what waits at each step's end."""
        draw, now, version, rows = np.random.default_rng(self.seed), 0.0, 0, []
        waiting: list[tuple[int, float]] = []
        busy = [(self._seconds(draw), 0, self._length(draw)) for _ in range(self.engines)]
        heapq.heapify(busy)
        idle_s = 0.0
        for _ in range(number):
            begun, lengths, ages, waited = now, [], [], 0.0
            stopped_at, until = idle_s, now
            while len(lengths) < self.batch:
                idle_s += self._generate(busy, waiting, until, version, draw)
                if not waiting:
                    until = max(until, busy[0][0])
                    continue
                born, length = waiting.pop(0)
                if version - born >= self.too_old:
                    self.counts["stale"] += 1
                    continue
                lengths.append(length)
                ages.append(version - born)
            waited, now = until - begun, until + self.train_s
            idle_s += self._generate(busy, waiting, now, version, draw)
            version += 1
            self.counts["trained"] += self.batch
            rows.append(
                {
                    "seconds": now - begun,
                    "waited": waited,
                    "engine_idle": (idle_s - stopped_at) / (self.engines * (now - begun)),
                    "length": float(np.mean(lengths)),
                    "age": float(np.mean(ages)),
                    "in_flight": len(waiting),
                    **self.counts,
                }
            )
        return rows

    def _length(self, draw: np.random.Generator) -> float:
        return float(np.round(400 * np.exp(draw.normal(0, 0.5))))

    def _seconds(self, draw: np.random.Generator) -> float:
        return self._length(draw) / TOKENS_A_SECOND

    def _generate(self, busy, waiting, until: float, version: int, draw) -> float:
        """Lets all engines work until a time; the seconds that they waited for room, together."""
        idle = 0.0
        while busy[0][0] <= until:
            if self.blocks and len(waiting) >= self.queue:
                # All engines stand with their finished groups until the trainer has taken some.
                idle += sum(until - max(done, 0.0) for done, _, _ in busy if done <= until)
                late = [
                    (until + 1e-9, born, length) if done <= until else (done, born, length)
                    for done, born, length in busy
                ]
                busy[:] = late
                heapq.heapify(busy)
                return idle
            done, born, length = heapq.heappop(busy)
            self.counts["generated"] += 1
            waiting.append((born, length))
            if len(waiting) > self.queue:
                waiting.pop(0)
                self.counts["dropped"] += 1
            new = self._length(draw)
            heapq.heappush(busy, (done + new / TOKENS_A_SECOND, version, new))
        return idle


def fully_async(rows, gpus: tuple[int, int], rewards=None, lost: int = 0) -> str:
    """The console of verl's `fully_async` loop; `lost` groups of each step are in no account."""
    head = (
        "verl==0.9.1\n+ python3 -m verl.experimental.fully_async_policy.fully_async_main "
        "actor_rollout_ref.rollout.name=vllm "
        f"actor_rollout_ref.rollout.n={RESPONSES} actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.nnodes=1 "
        f"trainer.n_gpus_per_node={gpus[0]} rollout.nnodes=1 rollout.n_gpus_per_node={gpus[1]}\n"
    )
    lines, before = [], {"trained": 0, "stale": 0}
    for place, row in enumerate(rows):
        responses = (row["trained"] - before["trained"]) * RESPONSES
        stale, before = row["stale"] - before["stale"], row
        pairs = {
            "response_length/mean": row["length"],
            "response_length/max": 4 * row["length"],
            "prompt_length/mean": 100.0,
            "perf/total_num_tokens": (row["length"] + 100.0) * responses,
            "critic/score/mean": 0.3 if rewards is None else rewards[place],
            "timing_s/gen": row["waited"],
            "timing_s/step": row["seconds"],
            "timing_s/param_sync": 0.1,
            "fully_async/trainer/idle_ratio": row["waited"] / row["seconds"],
            "fully_async/rollouter/idle_ratio": row["engine_idle"],
            "fully_async/count/total_generated_samples": row["generated"] - row["dropped"] + lost * (place + 1),
            "fully_async/count/dropped_stale_samples": row["dropped"],
            "fully_async/monitor/queue/mq_queue_size": row["in_flight"],
            "fully_async/partial/partial_ratio": 0.25,
            "training/off_policy/trajectory_staleness/mean": row["age"],
        }
        # verl logs no eviction of nothing.
        pairs |= {"training/off_policy/evicted_samples": stale} if stale else {}
        shown = " - ".join(f"{name}:{value:.6f}" for name, value in pairs.items())
        lines.append(f"(FullyAsyncTaskRunner pid=1) step:{place + 1} - {shown}\n")
    return head + "".join(lines)
