"""GPUs by our names and the drivers', and what a model's config.json tells of its decoding."""

import pytest

from common.gpus import KNOWN_GPUS, gpu_of, known_name
from common.model_facts import facts_of, model_facts


@pytest.mark.parametrize(
    ("reported", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        (" h100-80gb ", "H100-80GB"),
    ],
)
def test_a_name_means_what_it_says(reported, known):
    assert known_name(reported) == known and gpu_of(reported) is KNOWN_GPUS[known]


@pytest.mark.parametrize(
    "name",
    # A slice of a GPU, a card that shares a family's name, a family's name alone, the A10 of one cloud, and nothing.
    [
        *("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA H100 80GB HBM2e", "H100", "H200", "NVIDIA H20", "NVIDIA A10G"),
        *("", None),
    ],
)
def test_other_names_are_unknown(name):
    assert known_name(name) is None and gpu_of(name) is None


def test_a_decode_step_reads_the_output_head_and_no_input_embedding_of_its_own():
    """Phi-4: 40 layers of (5120 * 128 * (2*40 + 2*10) + 3 * 5120 * 17920), and a head of 100352 * 5120."""
    phi = model_facts("microsoft/Phi-4-reasoning-plus")
    assert phi is not None and phi.parameters is not None and phi.decode_parameters is not None
    assert phi.decode_parameters == 40 * (65_536_000 + 275_251_200) + 513_802_240
    assert phi.parameters - phi.decode_parameters == 513_802_240
    tied = model_facts("Qwen/Qwen2.5-0.5B")
    assert tied is not None and tied.parameters == tied.decode_parameters


QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
    "num_hidden_layers": 24, "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "full"),
    [
        ({}, True),
        ({"sliding_window": 131072, "use_sliding_window": False}, True),
        ({"sliding_window": 4096}, False),
        ({"layer_types": ["full_attention"] * 24, "sliding_window": 4096}, True),
        ({"layer_types": ["full_attention", "sliding_attention"] * 12}, False),
    ],
)
def test_a_sliding_window_is_told(more, full):
    facts = facts_of(QWEN | more, "here")
    assert facts is not None and facts.full_attention is full
