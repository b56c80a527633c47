"""Writes the built-in models, random Qwen2 models with their own tokenizer: `tiny` for CPUs, `small` for GPUs.

The kernels limit the sizes: `tiny` has heads of 32, because vLLM's CPU attention does not support 16; `small` has heads
of 64, the minimum of FlashAttention, FlashInfer and Triton. `tiny` needs one second per step on two cores.

A model of `WITHOUT_WEIGHTS` is a configuration and a tokenizer: a replay's engine makes the weights itself
(`load_format: dummy`), so that a large model's speed needs no download.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from node.hardware import importing

VOCABULARY = 512
CONTEXT = 2048
# Arguments of Qwen2Config.
SHAPES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "builtin:tiny-qwen2": {
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        "builtin:small-qwen2": {
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
    }
)
# Arguments of Phi3Config. Its context is that of the long-context release.
WITHOUT_WEIGHTS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "builtin:phi4-shape": {
            "hidden_size": 5120,
            "intermediate_size": 17920,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 10,
            "vocab_size": 100_352,
            "max_position_embeddings": 32_768,
        }
    }
)
BUILTIN_MODELS = (*SHAPES, *WITHOUT_WEIGHTS)
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    + START
    + "{{ message['role'] }}\n{{ message['content'] }}"
    + END
    + "\n{% endfor %}{% if add_generation_prompt %}"
    + START
    + "assistant\n{% endif %}"
)


def write_builtin(name: str, folder: Path, conversations: Sequence[list[dict[str, str]]], seed: int) -> None:
    """Write a built-in model (its weights in float32), and a byte-level BPE tokenizer trained on `conversations`.

    Equal conversations and seeds give equal bytes.
    """
    with importing():
        import torch
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import GenerationConfig, Phi3Config, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = [message["content"] for conversation in conversations for message in conversation]
    core.train_from_iterator([*text, "system\n", "user\n", "assistant\n"], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=PAD, model_max_length=CONTEXT, padding_side="left"
    )
    tokenizer.chat_template = CHAT_TEMPLATE

    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    tokenizer.save_pretrained(folder)
    if name in WITHOUT_WEIGHTS:
        config = Phi3Config(**WITHOUT_WEIGHTS[name], tie_word_embeddings=False, **ids)
        config.architectures, config.dtype = ["Phi3ForCausalLM"], "bfloat16"
        config.save_pretrained(folder)
        return
    config = Qwen2Config(
        vocab_size=len(tokenizer),  # so that every sampled id can be decoded
        **SHAPES[name],
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        **ids,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
