"""SGLang's facts, and `hooks`, the names inside it that our code uses."""

from pathlib import Path

from engines.engine import Engine
from engines.sglang.printed import LINES
from engines.sglang.reported import MEASURED, OPTIONS, terms_in
from node.hooks import Hooks

hooks = Hooks(Path(__file__).parent)

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
    reported=terms_in,
    printed=LINES,
    options=OPTIONS,
    # sglang 0.4.6 to 0.5.23, srt/server_args.py
    defaults={
        **{"disable_cuda_graph": False, "disable_radix_cache": False, "quantization": None, "kv_cache_dtype": "auto"},
    },
    measured=MEASURED,
    unmodelled_options={
        "quantization": "the rollout's weights are quantised",
        "kv_cache_dtype": "keys and values have their own number format",
        "speculative_algorithm": "several tokens are written in one iteration",
    },
)
