"""SGLang's facts."""

from engines.engine import Engine

SGLANG = Engine(
    name="sglang",
    label="SGLang",
    packages=("sglang",),
    # "auto" is float16 or bfloat16, as in the checkpoint.
    number_bytes=2,
    max_sequences_option="max_running_requests",
    # fa3 is in SGLang's own kernels (sgl_kernel), fa4 in a package of its own (jit_kernel/flash_attention_v4.py).
    attention_packages={
        **dict.fromkeys(("fa3", "flashmla", "cutlass_mla"), ("sglang-kernel", "sgl-kernel")),
        "fa4": ("flash-attn-4",),
        **dict.fromkeys(("flashinfer", "trtllm_mla", "trtllm_mha"), ("flashinfer-python",)),
    },
    unmodelled_options={
        "quantization": "the rollout's weights are quantised",
        "kv_cache_dtype": "keys and values have their own number format",
        "speculative_algorithm": "several tokens are written in one iteration",
    },
)
