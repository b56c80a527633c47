"""Sizes of models and of GPUs; what is not known is said to be."""

import json

import pytest

from common.model_facts import facts_of, model_facts


@pytest.mark.parametrize(
    ("source", "billions", "context"),
    [
        ("microsoft/Phi-4-reasoning-plus", 14.66, 32768),
        ("microsoft/phi-4", 14.66, 16384),
        ("Qwen/Qwen2.5-0.5B", 0.494, 32768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.54, 32768),
        ("Qwen/Qwen2.5-7B", 7.61, 131072),
        ("meta-llama/Llama-3.1-8B", 8.03, 131072),
        ("meta-llama/Llama-3.1-70B", 70.55, 131072),
    ],
)
def test_known_models_have_the_parameters_of_their_cards(source, billions, context):
    facts = model_facts(source)
    assert facts is not None and facts.parameters is not None and facts.context == context
    assert facts.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert source in facts.source


def test_a_local_folder_is_read(tmp_path):
    config = {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 28, "intermediate_size": 3072, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = model_facts(str(tmp_path))
    assert facts is not None and facts.parameters is not None
    assert facts.parameters == pytest.approx(0.596e9, rel=0.005)
    # The head's width is the config's own, not hidden over heads.
    assert (facts.head_dim, facts.kv_numbers) == (128, 2 * 28 * 8 * 128)
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["MixtralForCausalLM"]}))
    experts = model_facts(str(tmp_path))
    assert experts is not None and experts.parameters is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"hidden_size": 0}', "\ufeff{"])
def test_a_folder_that_tells_nothing_is_unknown(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    assert model_facts(str(tmp_path)) is None
    assert model_facts("somebody/else") is None
    assert facts_of({}, "nowhere") is None
