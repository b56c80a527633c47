"""Scores responses with a reward model: a sequence classifier with one label, which each training process loads once.

The text is the chat template of the reward model's own tokenizer over the prompt and the completion; where it has none,
their contents, a line each. A text that is too long loses its beginning, and is counted. Dropout is off.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.built_in_rewards import Response
from node.exit_codes import one_line
from node.hardware import importing
from node.policy import missing_parts

HEAD = "ForSequenceClassification"
OWN_PROCESS = "own"
"""The `device` of a reward model in a process of its own (node/scorer.py)."""
_LABELS_UNLESS_TOLD = 2  # of transformers' configurations
_NO_LIMIT = 1 << 30
"""Tokenizers without a longest text say a number beyond this."""


def scorer_rewards(rewards: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Those of a workload's rewards that are scored in a process of their own."""
    return [one for one in rewards if isinstance(one, Mapping) and one.get("device") == OWN_PROCESS]


def model_key(reward: Mapping[str, Any]) -> str:
    """What names a reward's model among an experiment's inputs."""
    return f"{reward['model']}@{reward['revision']}" if reward.get("revision") else str(reward["model"])


def reward_model_problem(folder: Path) -> str | None:
    """Why a folder is no reward model that can be scored with, by its files alone; None where it is one."""
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if lacks := missing_parts(folder):
        return f"{folder} is no model: it lacks {' and '.join(lacks)}"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architecture = str((config.get("architectures") or ["none"])[0])
    except (OSError, ValueError, AttributeError) as error:
        return f"{folder / 'config.json'} cannot be read: {one_line(error)}"
    if not architecture.endswith(HEAD):
        return f"{folder} is no sequence classifier: its architecture is {architecture}, and must end with {HEAD}"
    labels = len(config.get("id2label") or ()) or int(config.get("num_labels") or _LABELS_UNLESS_TOLD)
    return None if labels == 1 else f"{folder} has {labels} labels, and a reward model has one"


def context_length(folder: Path) -> int | None:
    """The most tokens that its configuration has positions for; None where it does not say it."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    told = config.get("max_position_embeddings")
    return told if isinstance(told, int) else None


def load_tokenizer(folder: Path) -> Any:
    """Its tokenizer; `UserError` where it cannot be loaded in this stack."""
    with importing():
        from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:
        raise UserError(
            f"workload.rewards: the tokenizer of the reward model {folder} cannot be loaded: {one_line(error)}; give a "
            "folder that this stack's transformers can read"
        ) from error


class Classifier:
    """A reward model, told of here and loaded by `ready`, before the first step.

    `reward` holds `model`, `name`, `max_length`, `batch_size`, `dtype` and `device`, as the workload has them; `folder`
    is where its files lie. `UserError` where they are of no reward model.
    """

    takes = ("prompts",)

    def __init__(self, reward: Mapping[str, Any], folder: Path) -> None:
        if problem := reward_model_problem(folder):
            raise UserError(f"workload.rewards: {problem}; give a sequence classifier with one label")
        self.name, self._folder = str(reward["name"]), folder
        self._dtype, self._device = str(reward.get("dtype") or "float32"), str(reward.get("device") or "trainer")
        self._batch, self._longest = int(reward.get("batch_size") or 1), reward.get("max_length")
        self._model: Any = None
        self._tokenizer: Any = None
        self.truncated = 0
        """Of the last call: the texts that were too long."""
        self._warned = False

    def ready(self, device: Any) -> None:
        """Load it onto the trainer's `device`, or where the workload says; the random state stays as it is."""
        with importing():
            import torch
            from transformers import AutoModelForSequenceClassification

        if self._model is not None:
            return
        self._tokenizer = load_tokenizer(self._folder)
        place = torch.device("cpu") if self._device == "cpu" else torch.device(device)
        try:
            with torch.random.fork_rng(devices=[]):
                model, told = AutoModelForSequenceClassification.from_pretrained(
                    str(self._folder), dtype=getattr(torch, self._dtype), output_loading_info=True
                )
            if told["missing_keys"]:
                missing = ", ".join(sorted(told["missing_keys"])[:3])
                raise UserError(
                    f"workload.rewards: the weights of the reward model {self._folder} lack {missing}: its scores "
                    "would be random; give the whole model"
                )
            self._model = model.to(place).eval().requires_grad_(False)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"workload.rewards: the reward model {self._folder} does not fit onto {place}: {one_line(error)}; "
                "set dtype: bfloat16, or device: own or cpu, or leave the engine less of the GPU"
            ) from error
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(
                f"workload.rewards: the reward model {self._folder} cannot be loaded: {one_line(error)}"
            ) from error
        self._prepare()

    def _prepare(self) -> None:
        """Set what a batch of texts needs, as TRL does for its reward models."""
        tokenizer, config = self._tokenizer, self._model.config.get_text_config()
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        self._model.config.use_cache = False
        tokenizer.truncation_side = "left"
        known = (self._longest, tokenizer.model_max_length, context_length(self._folder))
        limits = [int(one) for one in known if one is not None and one < _NO_LIMIT]
        self._longest = min(limits, default=None)

    def score(self, responses: Sequence[Response], *, trained: bool = True) -> tuple[list[float | None], int]:
        """One value for each response, and how many have none since theirs is no finite number.

        `UserError` where that is so of all; of responses that are not `trained` on it is not.
        """
        ids = self._encoded([self.text(response) for response in responses])
        order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
        values: list[float | None] = [None] * len(ids)
        for start in range(0, len(order), self._batch):
            batch = order[start : start + self._batch]
            for at, value in zip(batch, self._logits([ids[at] for at in batch]), strict=True):
                values[at] = value if math.isfinite(value) else None
        failed = values.count(None)
        if trained and failed == len(values) > 0:
            raise UserError(
                f"the reward model {self.name} gives no finite number for any of {failed} completions in "
                f"{self._dtype}; set its dtype to float32, or give another model"
            )
        return values, failed

    def text(self, response: Response) -> str:
        """What the model reads of a response."""
        prompt = response.prompt if response.prompt is not None else ()
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = [{"role": str(one["role"]), "content": one["content"]} for one in said]
        messages.append({"role": "assistant", "content": response.text})
        if not self._tokenizer.chat_template:
            return "\n".join(str(one["content"]) for one in messages)
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False))

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """The texts' tokens, of those that are too long the last ones."""
        # A chat template writes its own special tokens.
        more = {"add_special_tokens": not self._tokenizer.chat_template}
        ids: list[list[int]] = self._tokenizer(list(texts), **more, verbose=False)["input_ids"]
        self.truncated = 0
        for at, text in enumerate(texts):
            if self._longest is not None and len(ids[at]) > self._longest:
                self.truncated += 1
                ids[at] = self._tokenizer(text, **more, truncation=True, max_length=self._longest)["input_ids"]
        if self.truncated and not self._warned:
            self._warned = True
            print(
                f"reward model {self.name}: {self.truncated} of {len(texts)} texts have more than {self._longest} "
                f"tokens, and lose their beginning; rewards/{self.name}/truncated counts them in each step",
                file=sys.stderr,
                flush=True,
            )
        return ids

    def _logits(self, ids: Sequence[Sequence[int]]) -> list[float]:
        import torch

        device = self._model.device
        batch = self._tokenizer.pad({"input_ids": list(ids)}, padding_side="right", return_tensors="pt").to(device)
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            logits = self._model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return [float(value) for value in logits[:, 0].float().tolist()]
