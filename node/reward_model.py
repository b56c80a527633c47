"""Scores responses with a reward model: a sequence classifier with one label.

The input is prompt and completion in the chat template of the reward model's tokenizer; without a template their
contents, one per line. The start of too long texts is cut, and these texts are counted. Dropout is off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json
from common.retry import retry_io
from node.built_in_rewards import Response, reward_name
from node.exit_codes import one_line
from node.hardware import importing
from node.policy import missing_parts

HEAD = "ForSequenceClassification"
_DEFAULT_LABELS = 2  # of transformers' configurations
_NO_LIMIT = 1 << 30
"""Tokenizers without a length limit report a number above this."""


def model_key(reward: Mapping[str, Any]) -> str:
    """The key of a reward's model in inputs.json."""
    return f"{reward['model']}@{reward['revision']}" if reward.get("revision") else str(reward["model"])


def reward_model_problem(folder: Path) -> str | None:
    """Why a folder is not a usable reward model, by its files; None if it is one."""
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if missing := missing_parts(folder):
        return f"{folder} is not a model: it lacks {' and '.join(missing)}"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architecture = str((config.get("architectures") or ["none"])[0])
    except (OSError, ValueError, AttributeError) as error:
        return f"{folder / 'config.json'} cannot be read: {one_line(error)}"
    if not architecture.endswith(HEAD):
        return f"{folder} is not a sequence classifier: its architecture must end with {HEAD} (got {architecture})"
    labels = len(config.get("id2label") or ()) or int(config.get("num_labels") or _DEFAULT_LABELS)
    return None if labels == 1 else f"{folder} has {labels} labels, and a reward model has one"


def context_length(folder: Path) -> int | None:
    """The maximum number of tokens in a model's configuration; None if it has none."""
    config = retry_io(lambda: read_json(folder / "config.json"), "the reward model")
    length = config.get("max_position_embeddings")
    return length if isinstance(length, int) else None


def load_tokenizer(folder: Path) -> Any:
    """A reward model's tokenizer; `UserError` if this stack cannot load it."""
    with importing():
        from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:
        raise UserError(
            f"workload.rewards: the tokenizer of the reward model {folder} cannot be loaded: {one_line(error)}; use a "
            "folder that this stack's transformers can load"
        ) from error


class Classifier:
    """A reward model; `ready` loads it before the first step.

    `reward` has the workload's `model`, `name`, `max_length`, `batch_size`, `dtype` and `device`. `UserError` if
    `folder` is not a reward model.
    """

    takes = ("prompts",)

    def __init__(self, reward: Mapping[str, Any], folder: Path) -> None:
        if problem := reward_model_problem(folder):
            raise UserError(f"workload.rewards: {problem}; give a sequence classifier with one label")
        self.name, self._folder = reward_name(reward), folder
        self._dtype, self._device = str(reward.get("dtype") or "float32"), str(reward.get("device") or "trainer")
        self._batch, self._longest = int(reward.get("batch_size") or 1), int(reward.get("max_length") or _NO_LIMIT)
        self._model: Any = None
        self._tokenizer: Any = None
        self.truncated = 0
        """Number of too long texts in the last call."""

    def ready(self, device: Any) -> None:
        """Load it onto the trainer's `device` or the workload's; keeps the random state."""
        with importing():
            import torch
            from transformers import AutoModelForSequenceClassification

        if self._model is not None:
            return
        self._tokenizer = load_tokenizer(self._folder)
        place = torch.device("cpu") if self._device == "cpu" else torch.device(device)
        try:
            with torch.random.fork_rng(devices=[]):
                model, info = AutoModelForSequenceClassification.from_pretrained(
                    str(self._folder), dtype=getattr(torch, self._dtype), output_loading_info=True
                )
            if missing := ", ".join(sorted(info["missing_keys"])[:3]):
                raise ValueError(f"its weights lack {missing}, so its scores would be random")
            self._model = model.to(place).eval().requires_grad_(False)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(
                f"workload.rewards: the reward model {self._folder} cannot be loaded onto {place}: {one_line(error)}; "
                "use a complete model, or less memory (dtype: bfloat16, device: cpu)"
            ) from error
        self._prepare()

    def _prepare(self) -> None:
        """Configure padding and truncation for batches, as TRL does for its reward models."""
        tokenizer, config = self._tokenizer, self._model.config.get_text_config()
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        self._model.config.use_cache = False
        tokenizer.truncation_side = "left"
        known = (tokenizer.model_max_length, context_length(self._folder))
        self._longest = min(self._longest, *(int(limit) for limit in known if limit is not None))

    def score(self, responses: Sequence[Response]) -> tuple[list[float | None], int]:
        """One value for each response, None if it is not finite, and the number of these; `UserError` if all are."""
        # A chat template writes its own special tokens.
        options = {"add_special_tokens": not self._tokenizer.chat_template, "verbose": False}
        texts = [self.text(response) for response in responses]
        ids = self._tokenizer(texts, **options)["input_ids"]
        long = [at for at, tokens in enumerate(ids) if len(tokens) > self._longest]
        self.truncated = len(long)
        for at in long:
            ids[at] = self._tokenizer(texts[at], **options, truncation=True, max_length=self._longest)["input_ids"]
        order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
        values: list[float | None] = [None] * len(ids)
        for start in range(0, len(order), self._batch):
            batch = order[start : start + self._batch]
            for at, value in zip(batch, self._logits([ids[at] for at in batch]), strict=True):
                values[at] = value if math.isfinite(value) else None
        failed = values.count(None)
        if failed == len(values) > 0:
            raise UserError(
                f"the reward model {self.name} gives no finite number for any of {failed} completions in "
                f"{self._dtype}; set its dtype to float32, or use another model"
            )
        return values, failed

    def text(self, response: Response) -> str:
        """The model's input for a response."""
        prompt = [{"role": str(turn["role"]), "content": turn["content"]} for turn in response.prompt or ()]
        messages = [*prompt, {"role": "assistant", "content": response.text}]
        if not self._tokenizer.chat_template:
            return "\n".join(str(message["content"]) for message in messages)
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False))

    def _logits(self, ids: Sequence[Sequence[int]]) -> list[float]:
        import torch

        device = self._model.device
        batch = self._tokenizer.pad({"input_ids": list(ids)}, padding_side="right", return_tensors="pt").to(device)
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            logits = self._model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return [float(value) for value in logits[:, 0].float().tolist()]
