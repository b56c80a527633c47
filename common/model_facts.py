"""Gives how large a model is and what it reads for each token, and tells whether two names are of one model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A decoder's sizes; the parameters are None where its architecture is not one that is counted here."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rope_scaling: bool
    parameters: int | None
    decode_parameters: int | None
    """What every decode step reads: all matrices and the output head, not an input embedding of its own."""
    full_attention: bool
    """Whether every layer attends to the whole sequence, as far as the configuration tells."""
    source: str

    @property
    def kv_numbers(self) -> int:
        """How many numbers one token's keys and values are, over all layers and heads."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def kv_bytes(self) -> int:
        """Their bytes in bfloat16."""
        return 2 * self.kv_numbers


# Attention with separate or fused projections and a gated MLP: what the count below is right for. Biases and norms,
# a ten-thousandth of the whole, are left out.
COUNTED = ("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

# Where huggingface_hub keeps what it has downloaded: the folder tells the hub id.
_CACHED = re.compile(r"models--([^/]+?)--([^/]+)/snapshots(?:/|$)")
_HUB = "config.json of https://huggingface.co/{}"


def _config(architecture: str, sizes: str, *, tied: bool = False, scaled: bool = False) -> dict[str, Any]:
    layers, hidden, heads, kv_heads, intermediate, vocabulary, context = map(int, sizes.split())
    return {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "rope_scaling": {} if not scaled else {"rope_type": "llama3"},
    }


# layers, hidden, heads, kv heads, intermediate, vocabulary, context
_KNOWN: Mapping[str, dict[str, Any]] = {
    "microsoft/Phi-4-reasoning-plus": _config("Phi3ForCausalLM", "40 5120 40 10 17920 100352 32768"),
    "microsoft/Phi-4-reasoning": _config("Phi3ForCausalLM", "40 5120 40 10 17920 100352 32768"),
    "microsoft/phi-4": _config("Phi3ForCausalLM", "40 5120 40 10 17920 100352 16384"),
    "Qwen/Qwen2.5-0.5B": _config("Qwen2ForCausalLM", "24 896 14 2 4864 151936 32768", tied=True),
    "Qwen/Qwen2.5-0.5B-Instruct": _config("Qwen2ForCausalLM", "24 896 14 2 4864 151936 32768", tied=True),
    "Qwen/Qwen2.5-1.5B": _config("Qwen2ForCausalLM", "28 1536 12 2 8960 151936 131072", tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _config("Qwen2ForCausalLM", "28 1536 12 2 8960 151936 32768", tied=True),
    "Qwen/Qwen2.5-7B": _config("Qwen2ForCausalLM", "28 3584 28 4 18944 152064 131072"),
    "Qwen/Qwen2.5-7B-Instruct": _config("Qwen2ForCausalLM", "28 3584 28 4 18944 152064 32768"),
    "meta-llama/Llama-3.1-8B": _config("LlamaForCausalLM", "32 4096 32 8 14336 128256 131072", scaled=True),
    "meta-llama/Llama-3.1-8B-Instruct": _config("LlamaForCausalLM", "32 4096 32 8 14336 128256 131072", scaled=True),
    "meta-llama/Llama-3.1-70B": _config("LlamaForCausalLM", "80 8192 64 8 28672 128256 131072", scaled=True),
    "meta-llama/Llama-3.1-70B-Instruct": _config("LlamaForCausalLM", "80 8192 64 8 28672 128256 131072", scaled=True),
}
# As node/tiny.py makes it; its vocabulary is at most this.
_TINY = _config("Qwen2ForCausalLM", "4 128 4 2 512 512 2048", tied=True)


def model_facts(source: str) -> ModelFacts | None:
    """A model's sizes by its hub id, its folder or a built-in's name; None where nobody here knows them."""
    if source.startswith("builtin:"):
        return facts_of(_TINY, "node/tiny.py") if source == "builtin:tiny-qwen2" else None
    # As `workload.model.source` is read: a path is written as one.
    if not source.startswith(("/", ".", "~")) and source.count("/") < 2:
        known = {name.lower(): (name, config) for name, config in _KNOWN.items()}
        name, config = known.get(source.lower(), ("", None))
        return None if config is None else facts_of(config, _HUB.format(name))
    try:
        path = Path(source).expanduser() / "config.json"
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _by_name(source)
    except (OSError, RuntimeError, ValueError):
        return None
    return facts_of(content, str(path)) if isinstance(content, dict) else None


def _by_name(folder: str) -> ModelFacts | None:
    """A folder that is not on this machine, but is called as a known model is: its facts, with a word of caution."""
    wanted = Path(folder).name.lower()
    for name, config in _KNOWN.items():
        if name.rpartition("/")[2].lower() == wanted:
            return facts_of(config, f"{_HUB.format(name)} (by the folder's name: {folder} is not here)")
    return None


def facts_of(config: Mapping[str, Any], source: str) -> ModelFacts | None:
    """A config.json's content as facts; None if it is not a decoder of known words."""
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or hidden // heads)
        layers, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
        context = int(config["max_position_embeddings"])
        architecture = str((config.get("architectures") or ["unknown"])[0])
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        mlp = 3 * hidden * int(config["intermediate_size"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    counted = architecture in COUNTED
    embedding = vocabulary * hidden
    read = layers * (attention + mlp) + embedding
    return ModelFacts(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        context=context,
        rope_scaling=bool(config.get("rope_scaling")),
        parameters=read + (0 if config.get("tie_word_embeddings") else embedding) if counted else None,
        decode_parameters=read if counted else None,
        full_attention=_full_attention(config),
        source=source,
    )


def _full_attention(config: Mapping[str, Any]) -> bool:
    """Newer configurations name each layer's kind; older ones have a window, which Qwen's may leave unused."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return all(kind == "full_attention" for kind in kinds)
    return not (config.get("sliding_window") and config.get("use_sliding_window", True))


def hub_id(source: str) -> str:
    """A model's name; for a folder of the hub's cache, the id of what it holds."""
    found = _CACHED.search(source)
    return f"{found[1]}/{found[2]}" if found else source


def is_hub_id(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith(("/", ".", "~"))


def same_model(one: str, other: str) -> bool:
    """Whether two names may be of one model: of a folder only its own name says something."""
    one, other = hub_id(one).lower().rstrip("/"), hub_id(other).lower().rstrip("/")
    return one == other or (not (is_hub_id(one) and is_hub_id(other)) and one.split("/")[-1] == other.split("/")[-1])


def are_different_models(one: str, other: str) -> bool:
    """Whether two names tell two models; a folder may hold what the other, no folder, is called, if its sizes allow."""
    if same_model(one, other):
        return False
    if _is_folder(one) == _is_folder(other):
        return True
    if one.startswith("builtin:") or other.startswith("builtin:"):
        return False  # it was made into a folder
    facts = [model_facts(hub_id(name)) for name in (one, other)]
    known = [replace(found, source="") for found in facts if found is not None]
    return len(known) == 2 and known[0] != known[1]


def _is_folder(source: str) -> bool:
    return source.startswith(("/", ".", "~")) or hub_id(source).count("/") > 1


def contradicts_declared(own: str, declared: str) -> bool:
    """Whether the run's own model cannot be the declared one; a folder that is called as no known model may be any."""
    own, declared = hub_id(own), hub_id(declared)
    if same_model(own, declared) or (is_hub_id(own) and is_hub_id(declared)):
        return not same_model(own, declared)
    one, other = model_facts(own), model_facts(declared)
    return one is not None and (other is None or replace(one, source="") != replace(other, source=""))
