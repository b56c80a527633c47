"""In verl's Python: read prepared data with its RLHFDataset and score responses with its reward manager.

`python score_rows.py VERSION FOLDER` leaves told.json in the folder.
"""

import asyncio
import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf

LONGEST = 64
OWN_CODE = """
def asked(completions, prompts, rows, token_ids, cut_off, level):
    if "7" in completions:
        raise ValueError("bare")
    assert [row["level"] for row in rows] == level == [{"of": row["index"], "tags": [None, "é"]} for row in rows]
    told = zip(prompts, rows, token_ids, cut_off, strict=True)
    return [prompt[-1]["content"].endswith("?") + 10 * row["index"] + 100 * len(ids) + 10000 * cut for
            prompt, row, ids, cut in told]
"""
# As they are written for verl, TRL and ms-swift; verl's fails on a dict without a score.
FOREIGN_CODE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "x" and extra_info["level"]["of"] == extra_info["index"]
    return {"score": float(ground_truth in solution_str), "acc": True} if solution_str != "7" else {"acc": True}
def told(completions, solution, completion_ids, **kwargs):
    assert kwargs["level"][0]["tags"] == [None, "é"] and kwargs["prompts"][0][-1]["content"]
    return [len(one[0]["content"]) + len(ids) for one, ids in zip(completions, completion_ids)]
class Length:
    def __call__(self, completions, is_truncated, **kwargs):
        return [len(text) + cut for text, cut in zip(completions, is_truncated)]
"""
FOREIGN = {"source": "theirs.py", "code": FOREIGN_CODE, "weight": 0.01, "options": {}, "columns": ["level"]}
BUILT_IN = ("accuracy", "phi4", "format", "length", "cosine", "repetition", "soft_overlong", "emoji")
REWARDS = [
    *({"name": name, "weight": 0.5 if name == "phi4" else 1.0, "options": {}} for name in BUILT_IN),
    {"source": "mine.py", "function": "asked", "code": OWN_CODE, "weight": 0.001, "options": {}, "columns": ["level"]},
    *({**FOREIGN, "function": name} for name in ("compute_score", "told", "Length")),
]


def prepared(folder):
    """Inputs as `node.inputs` makes them."""
    from node.dataset import arithmetic_rows
    from node.inputs import prepare_inputs

    rows = [{**row, "level": {"of": at, "tags": [None, "é"]}} for at, row in enumerate(arithmetic_rows(16, 0))]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {"source": str(folder / "rows.jsonl"), "columns": ["level"], "split": "train", "answer_after": None}
    data |= {"prompt_column": "question", "answer_column": "answer", "system_prompt": None}
    model = {"source": "builtin:tiny-qwen2", "revision": None, "seed": 0}
    request = {"data": data, "model": model, "max_prompt_length": 64, "max_response_length": LONGEST}
    prepare_inputs(request, folder / "inputs")
    return folder / "inputs"


def composed(version, inputs):
    from trainers.verl.driver import reward as verl_reward
    from trainers.verl.driver.composed import compose, job_overrides

    rewards = inputs / "rewards.json"
    rewards.write_text(json.dumps({"rewards": REWARDS, "data": [str(inputs / "data.parquet")]}))
    mine = job_overrides(
        version,
        train_files=str(inputs / "data.parquet"),
        val_files=str(inputs / "data.parquet"),
        model=str(inputs / "model"),
        checkpoints=str(inputs),
        project="tests",
        run_id="a",
        reward_file=str(Path(verl_reward.__file__).resolve()),
        reward_kwargs={
            "rewards_file": str(rewards),
            "tokenizer": str(inputs / "model"),
            "max_response_length": LONGEST,
        },
    )
    lengths = ["data.max_prompt_length=64", f"data.max_response_length={LONGEST}"]
    config = OmegaConf.create(compose(version, [*lengths, *mine]))
    OmegaConf.set_struct(config, True)
    return config


def scored(version, config, tokenizer, batch):
    """Each response's scores by name, and the tensor of rewards, from verl's own reward manager."""
    from verl.trainer.ppo.reward import load_reward_manager

    if version == "0.4.1":
        manager = load_reward_manager(config, tokenizer, num_examine=0)
        result = manager(batch, return_dict=True)
        extra = result["reward_extra_info"]
        return [dict(zip(extra, row, strict=True)) for row in zip(*extra.values(), strict=True)], result[
            "reward_tensor"
        ]

    async def all_of_them():
        manager = load_reward_manager(config, tokenizer)
        return list(await asyncio.gather(*(manager.run_single(batch[at : at + 1]) for at in range(len(batch)))))

    results = asyncio.run(all_of_them())
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    tensor = RewardManagerBase.assemble_rm_scores(batch, [result["reward_score"] for result in results])
    return [result["reward_extra_info"] for result in results], tensor


def as_trl(ids, tokenizer, source):
    """The same responses as TRL hands them over: with their end token, unless they were cut."""
    from node.rewards import reward_functions

    functions = reward_functions(REWARDS, LONGEST)
    for function in functions:
        function.end_ids = frozenset(tokenizer.all_special_ids)
    given = {
        "completions": [[{"role": "assistant", "content": tokenizer.decode(one)}] for one in ids],
        "completion_ids": [[*one, tokenizer.eos_token_id][:LONGEST] for one in ids],
        "prompts": [row["prompt"] for row in source[: len(ids)]],
        "data_source": ["x"] * len(ids),
        "reward_model": [{"style": "rule", "ground_truth": "7"}] * len(ids),
        "extra_info": [row["extra_info"] for row in source[: len(ids)]],
    }
    return {function.__name__: function(**given) for function in functions}


def seeds(version, inputs):
    """The seed of a run's first engine in two attempts, as verl's own class of the rollout's settings has it."""
    from omegaconf import OmegaConf

    from trainers.verl.driver.train import _config

    plain = OmegaConf.to_container(composed(version, inputs))
    plain["actor_rollout_ref"]["rollout"]["name"] = "vllm"
    if version == "0.4.1":
        return ["seed" in _config(plain, at).actor_rollout_ref.rollout for at in (None, 20)]
    from verl.utils.config import omega_conf_to_dataclass

    return [omega_conf_to_dataclass(_config(plain, at).actor_rollout_ref.rollout).seed for at in (None, 20)]


def main(version, folder):
    import pyarrow.parquet as pq
    from verl import DataProto
    from verl.utils import hf_tokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    inputs = prepared(folder)
    config = composed(version, inputs)
    tokenizer = hf_tokenizer(str(inputs / "model"))
    source = pq.read_table(inputs / "data.parquet").to_pylist()
    dataset = RLHFDataset([str(inputs / "data.parquet")], tokenizer, config.data)
    row = dataset[3]
    prompt = tokenizer.apply_chat_template(source[3]["prompt"], add_generation_prompt=True, tokenize=False)

    texts = [
        "<think>a</think>\\boxed{7}",
        "<think>a</think>\\boxed{8}",
        "<think>" + " ".join(map(str, range(100, 200))),
        "7",
    ]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"][:LONGEST] for text in texts]
    attention = torch.zeros(len(texts), 4 + LONGEST, dtype=torch.long)
    responses = torch.full((len(texts), LONGEST), tokenizer.pad_token_id)
    for at, response in enumerate(ids):
        full = [*response, tokenizer.eos_token_id][:LONGEST]
        responses[at, : len(full)] = torch.tensor(full)
        attention[at, 2 : 4 + len(full)] = 1
    batch = DataProto.from_single_dict(
        {
            "prompts": torch.ones(len(texts), 4, dtype=torch.long),
            "responses": responses,
            "attention_mask": attention,
            "reward_model": np.array([{"style": "rule", "ground_truth": "7"}] * len(texts), dtype=object),
            "data_source": np.array(["x"] * len(texts), dtype=object),
            "extra_info": np.array([dataset[at]["extra_info"] for at in range(len(texts))], dtype=object),
        }
    )
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        scores, tensor = scored(version, config, tokenizer, batch)
    last = attention[:, 4:].sum(-1) - 1
    told = {
        "trl": as_trl(ids, tokenizer, source),
        "questions": [row["prompt"][-1]["content"] for row in source],
        "failures": (inputs / "reward_failures.jsonl").read_text().splitlines(),
        "lengths": [len(one) for one in ids],
        "rows": len(dataset),
        "dropped": len(source) - len(dataset),
        "prompt": prompt if "raw_prompt" in row and version != "0.4.1" else tokenizer.decode(row["raw_prompt_ids"]),
        "expected_prompt": prompt,
        "ground_truth": row["reward_model"]["ground_truth"],
        "expected_truth": source[3]["reward_model"]["ground_truth"],
        "wrong_tokens": len(ids[1]),
        "cut_tokens": len(ids[2]),
        "scores": [{name: float(value) for name, value in score.items()} for score in scores],
        "tensor": [
            {"sum": float(tensor[at].sum()), "at_last": float(tensor[at, last[at]])} for at in range(len(texts))
        ],
        "printed": [line for line in log.getvalue().splitlines() if "<think>" in line],
    }
    told["seeds"] = seeds(version, inputs)
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
