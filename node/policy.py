"""Prepares a workload's policy, and checks that its context is long enough for the prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.exit_codes import one_line
from node.hardware import importing
from node.hub import hub_error, source_kind
from node.tiny import write_builtin

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin")


def prepare_model(model: dict[str, Any], conversations: Sequence[list[dict[str, str]]], folder: Path) -> Path:
    """The policy's folder: `folder` for a built-in model, the user's own, or the hub cache's.

    A built-in model's tokenizer is trained on `conversations`. Raises `UserError` for a folder without a model, and for
    hub errors.
    """
    source = str(model["source"])
    kind = source_kind(source)
    if kind == "builtin":
        write_builtin(source, folder, conversations, int(model.get("seed", 0)))
        return folder
    if kind == "local":
        path = Path(source).expanduser().resolve()
        if not path.is_dir():
            raise UserError(
                f"workload.model.source {source!r} is not a folder (seen from {Path.cwd()}); correct the path"
            )
    else:
        path = hub_snapshot(source, str(model["revision"]))
    if missing := missing_parts(path):
        raise UserError(f"workload.model.source {source!r} is not a model: it lacks {' and '.join(missing)}")
    return path


def hub_snapshot(source: str, revision: str) -> Path:
    """A model's folder in the hub's cache; downloads it if necessary."""
    from transformers.utils.hub import snapshot_download

    # Weights in the formats of other frameworks would double the download.
    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except Exception as error:
        raise hub_error("model", source, revision, error) from error


def missing_parts(path: Path) -> list[str]:
    """The missing parts of a model folder, for messages."""
    missing = []
    if not (path / "config.json").is_file():
        missing.append("config.json")
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        missing.append(f"a tokenizer ({', '.join(_TOKENIZER_FILES)})")
    if not any(any(path.glob(pattern)) for pattern in _WEIGHT_PATTERNS):
        missing.append(f"weights ({', '.join(_WEIGHT_PATTERNS)})")
    return missing


def parameter_count(folder: Path) -> int | None:
    """The number of parameters, from the headers of a folder's safetensors files; None without such files.

    A file begins with the length of its header (8 bytes, little-endian), then the header: JSON, name to shape.
    """
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        count += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return count or None


def prompt_lengths(
    folder: Path, conversations: Sequence[list[dict[str, str]]], max_prompt_length: int, max_response_length: int
) -> list[int]:
    """The prompts' lengths in tokens, with the model's tokenizer and chat template.

    Raises `UserError` if the tokenizer has no chat template, or if prompt and response exceed the model's context.
    """
    with importing():
        from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:
        raise UserError(f"the tokenizer in {folder} cannot be loaded: {one_line(error)}") from error
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer in {folder} has no chat template, but the prompts are conversations; use an instruct "
            "model, or a local copy with a chat_template.jinja"
        )
    context = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    wanted = max_prompt_length + max_response_length
    if context is not None and wanted > context:
        raise UserError(
            f"workload.max_prompt_length + workload.max_response_length = {max_prompt_length} + {max_response_length} "
            f"= {wanted} tokens, but the model's context (max_position_embeddings) is {context}; lower one of them"
        )
    texts = tokenizer.apply_chat_template(list(conversations), add_generation_prompt=True, tokenize=False)
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
