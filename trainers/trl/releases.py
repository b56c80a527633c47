"""Lists the releases of TRL: a row each. A new release that has the same timers is one more series in a row."""

from collections.abc import Mapping

from trainers.hf_releases import HfRelease
from trainers.trl.timers import driven_tree, native_tree

TIMERS: Mapping[str, str] = {
    "_prepare_inputs": "prepare_inputs",
    "sync_weights": "sync_weights",
    "vLLM.generate": "generate",
    "SGLang.generate": "generate",
    "transformers.generate": "generate",
    "transformers.generate_batch": "generate",
    "_calculate_rewards": "rewards",
    "compute_loss": "compute_loss",
}
"""As in the profiling contexts of TRL's GRPOTrainer (1.8 to 1.16); `SGLang.generate` is our own."""

# Their profiling points are the same. Our driver needs what 1.16 has (hooks.py); other logs are imported.
_IMPORTED = ("0.28", "0.29", *(f"1.{minor}" for minor in range(16)))
RELEASES = (
    HfRelease("1.16", (driven_tree("1.16"), native_tree("1.16")), TIMERS),
    *(HfRelease(series, (native_tree(series),)) for series in _IMPORTED),
)
