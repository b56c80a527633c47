"""LMDeploy's facts. Only ms-swift up to 3.4 uses it."""

from engines.engine import Engine

LMDEPLOY = Engine(
    name="lmdeploy",
    label="LMDeploy",
    packages=("lmdeploy",),
    # "auto" is float16 or bfloat16, as in the checkpoint.
    number_bytes=2,
    max_sequences_option="max_batch_size",
    unmodelled_options={
        "model_format": "the rollout's weights may be quantised (awq, gptq)",
        "quant_policy": "keys and values have their own number format",
    },
)
