"""An engine that answers at random and sometimes fails, and an actor that writes random log-probabilities.

More is verl 0.9.1's own than beside workers.py: agent loops, reward workers and the queue between them, too.
"""

import asyncio
import os
import random
from pathlib import Path
from types import SimpleNamespace

import torch

FOLDER = Path(os.environ.get("STANDIN_FOLDER", "."))


class Client:
    """verl's client of its engine servers."""

    def __init__(self, config):
        self.config = config
        random.seed(0)

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        from verl.workers.rollout.replica import TokenOutput

        await asyncio.sleep(0.05)
        if (failing := FOLDER / "fail-once").exists() and sampling_params["temperature"]:  # in no validation
            failing.unlink(missing_ok=True)
            raise RuntimeError("made to fail")
        length = random.randint(2, self.config.actor_rollout_ref.rollout.response_length)
        ids = [*(random.randint(3, 300) for _ in range(length - 1)), 2]  # 2 ends it
        steps = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), 0)
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * length, extra_fields=steps, num_preempted=0)


class Workers:
    """The group of actor and reference, as far as the trainer calls one; all data goes through the queue."""

    _dispatch_info = {"actor": [0]}  # noqa: RUF012

    def _write(self, batch, *names):
        import transfer_queue as tq
        from tensordict import TensorDict

        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"])
        lengths = data["input_ids"].offsets().diff().tolist()
        made = {
            name: torch.nested.as_nested_tensor([-torch.rand(length) for length in lengths], layout=torch.jagged)
            for name in names
        }
        fields = TensorDict(made, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def compute_log_prob(self, batch):
        return self._write(batch, "log_probs", "entropy")

    def compute_ref_log_prob(self, batch):
        return self._write(batch, "log_probs")

    def update_actor(self, batch):
        """Wants what verl's loss reads."""
        import transfer_queue as tq

        wanted = ["responses", "response_mask", "old_log_probs", "ref_log_prob", "advantages"]
        tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=wanted)
        return {"metrics": {"mfu": 0.1, "pg_loss": 0.5, "lr": 1e-6, "grad_norm": 0.1}}

    def save_checkpoint(self, local_path, *_, **__):
        Path(local_path).mkdir(parents=True)


def patch(module):
    """What PPOTrainer sets up where there are GPUs."""

    def setup(trainer):
        trainer._init_tokenizer()
        trainer._init_dataloader()
        trainer._init_dump_executor()
        trainer._init_resource_pool_mgr()
        trainer.ref_in_actor = False
        trainer.actor_rollout_wg = trainer.ref_policy_wg = Workers()
        trainer.llm_server_manager = SimpleNamespace(get_client=lambda: Client(trainer.config))
        trainer.teacher_model_manager = trainer.distillation_config = None
        trainer.reward_loop_manager = module.RewardLoopManager(config=trainer.config)
        nothing = SimpleNamespace(update_weights=lambda *_: None, sleep_replicas=lambda: None)
        trainer.checkpoint_manager = nothing
        trainer._load_checkpoint()

    def fit(trainer, *args):
        print(f"looks for responses every {trainer.replay_buffer.poll_interval} s", flush=True)
        own_fit(trainer, *args)

    own_fit = module.PPOTrainer.fit
    module.PPOTrainer._setup = setup
    module.PPOTrainer.fit = fit
