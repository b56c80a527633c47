"""LMDeploy: what is asked of it. Of the trainers here ms-swift up to 3.4 alone generates with it."""

from engines.engine import Engine

LMDEPLOY = Engine(
    name="lmdeploy",
    label="LMDeploy",
    # "auto" is float16 or bfloat16, whatever the checkpoint has.
    number_bytes=2,
    max_sequences_option="max_batch_size",
    unmodelled_options={
        "model_format": "the rollout's weights may be quantised (awq, gptq)",
        "quant_policy": "keys and values have a number format of their own",
    },
)
