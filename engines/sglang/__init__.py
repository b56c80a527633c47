"""SGLang: what is asked of it."""

from engines.engine import Engine

SGLANG = Engine(
    name="sglang",
    label="SGLang",
    # "auto" is float16 or bfloat16, whatever the checkpoint has.
    number_bytes=2,
    max_sequences_option="max_running_requests",
    unmodelled_options={
        "quantization": "the rollout's weights are quantised",
        "kv_cache_dtype": "keys and values have a number format of their own",
        "speculative_algorithm": "several tokens are written in one iteration",
    },
)
