"""Writes the built-in models, random Qwen2 models with their own tokenizer: `tiny` for CPUs, `small` for GPUs.

The kernels limit the sizes: `tiny` has heads of 32, because vLLM's CPU attention does not support 16; `small` has heads
of 64, the minimum of FlashAttention, FlashInfer and Triton. `tiny` needs one second per step on two cores.
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
BUILTIN_MODELS = tuple(SHAPES)
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
    """Write a model of `SHAPES` in float32, and a byte-level BPE tokenizer trained on `conversations`.

    Equal conversations and seeds give equal bytes.
    """
    with importing():
        import torch
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

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

    config = Qwen2Config(
        vocab_size=len(tokenizer),  # so that every sampled id can be decoded
        **SHAPES[name],
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
