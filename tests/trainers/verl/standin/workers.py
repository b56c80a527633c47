"""Workers without a GPU: random tokens and log-probabilities, and the files of real checkpoints."""

import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import ray
import torch
from engine_actors import SGLangHttpServer, WorkerDict

FOLDER = Path(os.environ.get("STANDIN_FOLDER", "."))
STEP_S = 0.4


def work():
    """Takes a step's seconds; behind the first one of a life as long as its test holds it."""
    time.sleep(STEP_S)
    attempt = Path(os.environ["WANDB_DIR"])
    while (attempt / "hold").exists() and (attempt / "metrics.jsonl").exists():
        time.sleep(0.05)


class Workers:
    """A worker group of verl's, as far as its loops call one."""

    world_size = 2

    def __init__(self, config, tokenizer):
        torch.manual_seed(0)
        self.config, self.tokenizer = config, tokenizer
        self.kept = []

    def generate_sequences(self, batch):
        """0.4.1: n responses to each prompt, of random length; only one that is full has no end token."""
        from verl import DataProto

        if (FOLDER / "crash").exists():
            raise RuntimeError("made to crash")
        work()
        repeats, longest = self.config.rollout.n, self.config.rollout.response_length
        repeats = self.config.rollout.val_kwargs.n if batch.meta_info.get("validate") else repeats
        prompts = batch.batch["input_ids"].repeat_interleave(repeats, dim=0)
        mask = batch.batch["attention_mask"].repeat_interleave(repeats, dim=0)
        rows = len(prompts)
        lengths = torch.randint(2, longest + 1, (rows, 1))
        place = torch.arange(longest).expand(rows, longest)
        responses = torch.randint(3, 300, (rows, longest))
        responses = torch.where(place == lengths - 1, self.tokenizer.eos_token_id, responses)
        response_mask = (place < lengths).long()
        responses = torch.where(response_mask.bool(), responses, self.tokenizer.pad_token_id)
        attention = torch.cat([mask, response_mask], dim=1)
        made = {
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        }
        if self.config.rollout.calculate_log_probs:
            made["rollout_log_probs"] = -torch.rand(rows, longest)
        output = DataProto.from_single_dict(made)
        output.meta_info["timing"] = {"generate_sequences": STEP_S * 0.9, "reshard": STEP_S * 0.05}
        return output

    def compute_log_prob(self, batch):
        from verl import DataProto

        shape = batch.batch["responses"].shape
        return DataProto.from_single_dict({"old_log_probs": -torch.rand(shape), "entropys": torch.rand(shape)})

    def compute_ref_log_prob(self, batch):
        from verl import DataProto

        return DataProto.from_single_dict({"ref_log_prob": -torch.rand(batch.batch["responses"].shape)})

    def update_actor(self, batch):
        from verl import DataProto

        return DataProto(meta_info={"metrics": {"actor/pg_loss": [0.25, 0.75], "actor/lr": 1e-6}})

    def save_checkpoint(self, local_path, hdfs=None, step=0, max_ckpt_to_keep=None):
        """The files of FSDP's checkpoints; verl's way to forget older ones."""
        folder = Path(local_path)
        folder.mkdir(parents=True, exist_ok=True)
        self.kept.append(folder)
        while max_ckpt_to_keep and len(self.kept) > max_ckpt_to_keep:
            shutil.rmtree(self.kept.pop(0))  # not the folder around it, which holds data.pt
        for rank in range(self.world_size):
            for content in ("model", "optim", "extra_state"):
                torch.save({"step": step}, folder / f"{content}_world_size_{self.world_size}_rank_{rank}.pt")
        (folder / "fsdp_config.json").write_text(json.dumps({"world_size": self.world_size}))

    def load_checkpoint(self, local_path, **_):
        torch.load(Path(local_path) / f"model_world_size_{self.world_size}_rank_0.pt", weights_only=False)


def patch_ray_trainer(module):
    """verl 0.4.1: the workers of RayPPOTrainer."""

    def init_workers(trainer):
        trainer.actor_rollout_wg = Workers(trainer.config.actor_rollout_ref, trainer.tokenizer)
        actor = ray.remote(num_cpus=0)(WorkerDict)
        trainer.actor_rollout_wg.workers = [actor.remote(False), actor.remote(True)]
        trainer.ref_policy_wg = trainer.actor_rollout_wg
        trainer.async_rollout_mode = False

    module.RayPPOTrainer.init_workers = init_workers


class Replicas:
    """verl 0.9.1: the engines' memory and weights, as far as the trainer asks for them; awake or asleep."""

    def __init__(self):
        self.awake = False

    def update_weights(self, step):
        self.awake = True

    def sleep_replicas(self):
        self.awake = False


def patch_v1(module):
    """verl 0.9.1: what PPOTrainer sets up, and what it does within a step; its loop, metrics and queue are its own."""

    def setup(trainer):
        trainer._init_tokenizer()
        trainer._init_dataloader()
        trainer._init_dump_executor()
        trainer.actor_rollout_wg = Workers(trainer.config.actor_rollout_ref, trainer.tokenizer)
        trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 2)
        server = ray.remote(num_cpus=0)(SGLangHttpServer).remote()
        trainer.llm_server_manager = SimpleNamespace(get_client=lambda: None, server_handles=[server])
        trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=None)
        trainer.checkpoint_manager = Replicas()
        trainer._load_checkpoint()

    def save(trainer, *args):
        assert not trainer.checkpoint_manager.awake, "a checkpoint is saved while the engine has the GPU's memory"
        own_save(trainer, *args)

    def step(trainer, metrics, timing):
        if (FOLDER / "crash").exists():
            raise RuntimeError("made to crash")
        with module.marked_timer("gen", timing):
            trainer.checkpoint_manager.sleep_replicas()
            work()
            batch = respond(trainer, trainer._next_train_batch())
        with module.marked_timer("update_actor", timing):
            metrics.update({"actor/pg_loss": 0.5, "actor/lr": 1e-6})
        return batch

    def respond(trainer, prompts):
        from verl.trainer.ppo.reward import get_custom_reward_fn

        score = get_custom_reward_fn(trainer.config)
        longest, tokenizer = trainer.config.actor_rollout_ref.rollout.response_length, trainer.tokenizer
        rows = {}
        for index in range(len(prompts) * trainer.config.actor_rollout_ref.rollout.n):
            row = prompts[index // trainer.config.actor_rollout_ref.rollout.n]
            length = int(torch.randint(2, longest + 1, (1,)))
            response = torch.randint(3, 300, (length,))
            truth = row["reward_model"]["ground_truth"]
            told = score(data_source="x", solution_str=tokenizer.decode(response), ground_truth=truth, extra_info={})
            scores = torch.zeros(length)
            scores[-1] = told["score"]
            prompt = tokenizer.apply_chat_template(
                list(row["raw_prompt"]), add_generation_prompt=True, return_dict=False
            )
            for name, value in (
                ("prompts", torch.tensor(prompt)),
                ("responses", response),
                ("response_mask", torch.ones(length, dtype=torch.long)),
                *((name, scores) for name in ("rm_scores", "token_level_rewards", "advantages", "returns")),
            ):
                rows.setdefault(name, []).append(value)
        count = len(rows["prompts"])
        fields = {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in rows.items()}
        fields["num_turns"] = torch.full((count,), 2)
        now = trainer.global_steps - 1
        return module.tq.kv_batch_put(
            keys=[f"{trainer.global_steps}-{index}" for index in range(count)],
            partition_id="train",
            fields=module.TensorDict(fields, batch_size=count),
            tags=[{"min_global_steps": now, "max_global_steps": now}] * count,
        )

    own_save = module.PPOTrainer._save_checkpoint
    module.PPOTrainer._setup = setup
    module.PPOTrainer._save_checkpoint = save
    module.PPOTrainer.step = step


def patch_agent_loop(module):
    """verl 0.9.1: nobody to talk to an engine."""
    module.AgentLoopManagerTQ.create = classmethod(lambda *_, **__: None)
