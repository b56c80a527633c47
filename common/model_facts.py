"""Computes a model's sizes from its configuration, and compares model names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A decoder's sizes; the parameter counts are None for architectures outside `COUNTED`."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    rope_scaling: bool
    parameters: int | None
    decode_parameters: int | None
    """Parameters that every decode step reads: all matrices and the output head, not a separate input embedding."""
    full_attention: bool
    """Whether every layer attends to the whole sequence, according to the configuration."""
    source: str

    @property
    def kv_numbers(self) -> int:
        """Numbers in one token's keys and values, over all layers and heads."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def kv_heads_fit(self, gpus: int) -> bool:
        """Whether the GPUs divide or copy the heads of keys and values evenly."""
        return self.kv_heads % gpus == 0 if self.kv_heads >= gpus else gpus % self.kv_heads == 0

    def heads_fit(self, gpus: int) -> bool:
        """Whether an engine can split all heads over its GPUs."""
        return self.heads % gpus == 0 and self.kv_heads_fit(gpus)


# The parameter count below is correct for attention with separate or fused projections and a gated MLP. It omits
# biases and norms, 0.01% of the total.
COUNTED = ("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

# The cache folder of huggingface_hub contains the hub id.
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
# The models of node/tiny.py, with their maximum vocabulary.
_BUILTIN: Mapping[str, dict[str, Any]] = {
    "builtin:tiny-qwen2": _config("Qwen2ForCausalLM", "4 128 4 2 512 512 2048", tied=True),
    "builtin:small-qwen2": _config("Qwen2ForCausalLM", "8 512 8 4 2048 512 2048", tied=True),
    "builtin:phi4-shape": _KNOWN["microsoft/Phi-4-reasoning-plus"],
}


def model_facts(source: str) -> ModelFacts | None:
    """A model's sizes by hub id, folder or built-in name; None if unknown."""
    if source.startswith("builtin:"):
        config = _BUILTIN.get(source)
        return facts_of(config, "node/tiny.py") if config else None
    # The same rule as for `workload.model.source`.
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
    """The sizes of a missing folder that has the name of a known model."""
    wanted = Path(folder).name.lower()
    for name, config in _KNOWN.items():
        if name.rpartition("/")[2].lower() == wanted:
            return facts_of(config, f"{_HUB.format(name)} (by the folder's name: {folder} does not exist here)")
    return None


def facts_of(config: Mapping[str, Any], source: str) -> ModelFacts | None:
    """The sizes in a config.json; None if keys are missing or invalid."""
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
        context=context,
        rope_scaling=bool(config.get("rope_scaling")),
        parameters=read + (0 if config.get("tie_word_embeddings") else embedding) if counted else None,
        decode_parameters=read if counted else None,
        full_attention=_full_attention(config),
        source=source,
    )


def _full_attention(config: Mapping[str, Any]) -> bool:
    """Newer configurations list each layer's kind; older ones have a window, which Qwen may not use."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return all(kind == "full_attention" for kind in kinds)
    return not (config.get("sliding_window") and config.get("use_sliding_window", True))


def hub_id(source: str) -> str:
    """A model's name; for a folder of the hub's cache, its hub id."""
    match = _CACHED.search(source)
    return f"{match[1]}/{match[2]}" if match else source


def is_hub_id(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith(("/", ".", "~"))


def same_model(first: str, second: str) -> bool:
    """Whether two names may mean the same model; of a folder only its last part is compared."""
    first, second = hub_id(first).lower().rstrip("/"), hub_id(second).lower().rstrip("/")
    both_ids = is_hub_id(first) and is_hub_id(second)
    return first == second or (not both_ids and first.split("/")[-1] == second.split("/")[-1])


def are_different_models(first: str, second: str) -> bool:
    """Whether two names mean different models; a folder may contain any model of the same sizes."""
    if same_model(first, second):
        return False
    if _is_folder(first) == _is_folder(second):
        return True
    if first.startswith("builtin:") or second.startswith("builtin:"):
        return False  # built-in models are written into a folder
    sizes = [_sizes(first), _sizes(second)]
    return None not in sizes and sizes[0] != sizes[1]


def _sizes(source: str) -> ModelFacts | None:
    facts = model_facts(hub_id(source))
    return facts and replace(facts, source="")


def _is_folder(source: str) -> bool:
    return source.startswith(("/", ".", "~")) or hub_id(source).count("/") > 1


def contradicts_declared(own: str, declared: str) -> bool:
    """Whether the run's own model cannot be the declared one; a folder of unknown sizes may contain any model."""
    if same_model(own, declared):
        return False
    if is_hub_id(hub_id(own)) and is_hub_id(hub_id(declared)):
        return True
    sizes = _sizes(own)
    return sizes is not None and sizes != _sizes(declared)
