"""Lists the releases of ms-swift: a row each."""

from trainers.hf_releases import HfRelease
from trainers.swift.timers import async_tree, driven_tree, native_tree, native_tree_of_3

RELEASES = (
    HfRelease(
        "4.6",
        (driven_tree("4.6"), async_tree("4.6"), native_tree("4.6")),
        {
            "_prepare_inputs": "prepare_inputs",
            "_move_model_to_vllm": "sync_weights",
            "generate": "generate",
            "_compute_rewards_per_func": "rewards",
            "log_metrics": "log_completions",
            "compute_loss": "compute_loss",
            # These contain the phases above and almost no time of their own: encoding is the rest of prepare_inputs, as
            # in TRL.
            **dict.fromkeys(("_generate_and_score_completions", "_score_completions"), ""),
            **dict.fromkeys(("_dynamic_sampling", "_prepare_batch_inputs"), ""),
        },
    ),
    HfRelease("3.4", (native_tree_of_3("3.4"),)),
)
