"""Runs verl 0.9.1's own queue, counts, batches and sums of its `fully_async` loop in one process, without engines.

Prints a line for each step as verl's console does, and the queue's own counts as JSON in the last line.
"""

import asyncio
import json

import numpy as np
import torch
from omegaconf import OmegaConf
from ray import cloudpickle
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.fully_async_policy.detach_utils import (
    MetricsAggregator,
    RolloutSample,
    assemble_batch_from_rollout_samples,
)
from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncRollouter
from verl.experimental.fully_async_policy.message_queue import MessageQueue

BATCH, CAPACITY, RESPONSES = 4, 6, 8
GENERATED = (9, 4, 7, 4, 2, 6, 4, 12, 3, 4, 4, 5)
Queue, Rollouter = (one.__ray_metadata__.modified_class for one in (MessageQueue, FullyAsyncRollouter))


class Engines:
    """Answers each prompt with responses of 3 tokens, of which every fourth was sampled by two policies."""

    version = 1

    async def generate_sequences_single(self, batch):
        rows, shape = len(batch), (len(batch), 3)
        versions = np.full(rows, self.version)
        return DataProto(
            batch=TensorDict({"response_mask": torch.ones(shape), "attention_mask": torch.ones(shape)}, rows),
            non_tensor_batch={"max_global_steps": versions, "min_global_steps": versions - (np.arange(rows) % 4 == 0)},
            meta_info={"metrics": [{"generate_sequences": 1.0, "tool_calls": 0.0}] * rows},
        )


def rollouter_of(queue):
    made = Rollouter.__new__(Rollouter)
    made.async_rollout_manager, made.message_queue_client = Engines(), queue
    made.active_tasks, made.pending_queue = set(), asyncio.Queue()
    for name in ("total_generated_samples", "dropped_stale_samples", "staleness_samples", "processed_sample_count"):
        setattr(made, name, 0)
    made._step_generated_samples = 0
    made.max_required_samples = made.required_samples = made.staleness_threshold = BATCH
    made.max_queue_size = made.max_concurrent_samples = CAPACITY
    return made


async def loop():
    queue = Queue(OmegaConf.create({}), CAPACITY)
    rollouter, sums, counts = rollouter_of(queue), MetricsAggregator(total_gpus=4), []
    for step, number in enumerate(GENERATED, 1):
        rollouter.async_rollout_manager.version = step
        for place in range(number):
            empty = DataProto(batch=TensorDict({"prompts": torch.ones(RESPONSES, 1)}, RESPONSES), non_tensor_batch={})
            sample = RolloutSample(full_batch=empty, sample_id=f"{step}-{place}", epoch=0, rollout_status={})
            await rollouter._process_single_sample_streaming(sample)
        samples = [cloudpickle.loads((await queue.get_sample())[0]) for _ in range(BATCH)]
        batch = assemble_batch_from_rollout_samples(samples, None, None)
        told = {name: one for name, one in batch.meta_info.items() if name.startswith("fully_async")}
        told |= {"timing_s/gen": 5.0, "timing_s/step": 20.0 + step % 2, "timing_s/param_sync": 0.1}
        told |= {"response_length/mean": 3.0, "response_length/max": 3.0, "prompt_length/mean": 2.0}
        told |= {"perf/total_num_tokens": 5.0 * BATCH * RESPONSES, "perf/time_per_step": 20.0}
        sums.reset()
        sums.add_step_metrics(told, sample_count=BATCH)
        found = sums.get_aggregated_metrics()
        print(f"step:{step} - " + " - ".join(f"{name}:{value}" for name, value in found.items()))
        counts.append(await queue.get_statistics())
    print(json.dumps(counts))


asyncio.run(loop())
