"""In verl's Python: log made-up steps with verl's own metrics, loggers and our hooks; nothing is trained.

`python log_steps.py ORDER.json`: {"folder", "version", "steps", "first", "validate", "stop_at", "lose_at",
"ready_s", "bypass", "sampling", "environment"}.
"""

import json
import math
import os
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import OmegaConf

PROMPT, RESPONSE = 12, 40  # tokens
TIMERS = {
    "0.4.1": ["gen", "reward", "old_log_prob", "ref", "adv", "update_actor"],
    "0.9.1": ["gen", "old_log_prob", "ref", "adv", "update_actor", "save_checkpoint", "update_weights"],
}


def batch_of(version, rows, lengths):
    """A batch as it is when a step's metrics are computed."""
    from verl import DataProto

    prompts = [lengths.randint(3, PROMPT) for _ in range(rows)]
    responses = [lengths.randint(1, RESPONSE) for _ in range(rows)]
    attention = torch.zeros(rows, PROMPT + RESPONSE, dtype=torch.long)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        attention[row, PROMPT - prompt : PROMPT + response] = 1
    mask = attention[:, PROMPT:].clone()
    scores = torch.zeros(rows, RESPONSE)
    for row, response in enumerate(responses):
        scores[row, response - 1] = lengths.random()
    advantages = torch.tensor([[lengths.gauss(0, 1)] for _ in range(rows)]) * mask
    ends = torch.zeros(rows, RESPONSE, dtype=torch.long)
    ends[0, responses[0] - 1] = 7  # the first response has no end token
    of_engine = -torch.rand(rows, RESPONSE)
    tensors = {
        "rollout_log_probs": of_engine,
        "old_log_probs": of_engine - 0.1,
        "prompts": torch.zeros(rows, PROMPT, dtype=torch.long),
        "responses": ends,
        "attention_mask": attention,
        "response_mask": mask,
        "token_level_scores": scores,
        "token_level_rewards": scores.clone(),
        "advantages": advantages,
        "returns": advantages.clone(),
    }
    batch = DataProto.from_single_dict(tensors)
    batch.meta_info["global_token_num"] = attention.sum(-1).tolist()
    # As `compute_score` tells them: a function of the user's has no value for the first completion.
    accuracy, mine = [float(row % 2) for row in range(rows)], [math.nan, *range(1, rows)]
    failed = [1.0] + [0.0] * (rows - 1)
    batch.non_tensor_batch |= {"accuracy": np.array(accuracy), "mine": np.array(mine), "mine_failed": np.array(failed)}
    return batch


def timing_of(version, seconds):
    """Seconds as the version's own timers would give them; a step holds its phases and a little more."""
    timing = {name: seconds.uniform(0.05, 0.3) for name in TIMERS[version]}
    timing["gen"] = seconds.uniform(2.0, 4.0)
    timing["step"] = sum(timing.values()) + 0.004
    if version == "0.4.1":
        timing["generate_sequences"], timing["reshard"] = timing["gen"] * 0.9, timing["gen"] * 0.05
    return timing


def waited(buffer, ready_s):
    """The seconds of verl's own wait for responses that are ready after `ready_s`."""
    from verl.trainer.ppo.v1 import replay_buffer

    started = time.monotonic()

    def kv_list():
        status = "finished" if time.monotonic() > started + ready_s else "running"
        return {"train": {"a": {"is_prompt": True, "global_steps": 1, "status": status}, "a_0": {}}}

    replay_buffer.tq = SimpleNamespace(kv_list=kv_list, kv_clear=lambda **_: None)
    batch, _ = buffer.sample(1, "train", 1)
    assert batch.keys == ["a_0"]
    return time.monotonic() - started


class Trainer:
    """Stands in for verl's: the same calls of metrics and logger in the same order, and no workers."""

    def __init__(self, order):
        sampling = {"multi_turn": {"enable": False}, **order["sampling"]}
        self.config = OmegaConf.create(
            {
                "trainer": {"save_freq": -1},
                "data": {"train_batch_size": 2},
                "algorithm": {"rollout_correction": {"bypass_mode": order.get("bypass", False)}},
                "actor_rollout_ref": {"rollout": {"n": 4, "response_length": RESPONSE, **sampling}},
            }
        )
        self.tokenizer = SimpleNamespace(all_special_ids=[0])
        self.order = order
        self.total_training_steps = order["steps"]
        self.global_steps = order["first"] - 1
        self.checkpoint_manager = self  # of the engines' memory
        self.asleep = False
        if order.get("ready_s"):
            from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

            self.replay_buffer = ReplayBuffer("sync", {}, None, "drop", {})

    def fit(self):
        import numpy as np
        from verl.trainer.ppo import metric_utils
        from verl.utils.tracking import Tracking

        order, version = self.order, self.order["version"]
        backends = ["console", "wandb"] + (["file"] if version != "0.4.1" else [])
        settings = {"trainer": {"project_name": "tests", "total_training_steps": order["steps"]}}
        logger = Tracking("tests", "made-up", backends, settings)
        if order["validate"]:
            logger.log(data={"val-core/acc/mean@1": 0.25}, step=self.global_steps)
        for step in range(order["first"], order["steps"] + 1):
            self.global_steps = step
            numbers = random.Random(step)
            rows = 6 if step == order.get("lose_at") else 8
            batch, timing = batch_of(version, rows, numbers), timing_of(version, numbers)
            if order.get("bypass"):
                batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"]
            if order.get("ready_s"):
                timing["gen"] = waited(self.replay_buffer, order["ready_s"])
            metrics = {"actor/entropy": numbers.random(), "actor/lr": 1e-6, "actor/grad_norm": np.float32(0.1)}
            metrics |= {"training/global_step": step, "training/epoch": 0}
            metrics |= metric_utils.compute_data_metrics(batch=batch, use_critic=False)
            metrics |= metric_utils.compute_timing_metrics(batch=batch, timing_raw=timing)
            metrics |= metric_utils.compute_throughout_metrics(batch=batch, timing_raw=timing, n_gpus=2)
            if step == order.get("stop_at"):
                (Path(order["folder"]) / "stop").touch()
            logger.log(data=metrics, step=step)

    def sleep_replicas(self):
        self.asleep = True

    def _load_checkpoint(self):
        raise AssertionError("nothing is loaded here")

    def _save_checkpoint(self):
        assert self.asleep
        (Path(self.order["folder"]) / f"saved-{self.global_steps}").touch()


def main(order):
    from trainers.verl.driver.step_hooks import StepHooks

    os.environ.update(order["environment"])
    StepHooks(Path(order["folder"]), ("accuracy", "mine")).install(Trainer)
    Trainer(order).fit()
    import wandb

    wandb.finish()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
