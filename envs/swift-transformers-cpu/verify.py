"""Checks the built stack swift-transformers-cpu; run by `python -m workflow.stacks build`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import TRL_CPU
from _verify import Probe, main


def _swift_arguments() -> Any:
    from swift.arguments import RLHFArguments
    from swift.callbacks import callbacks_map
    from swift.rewards import orms
    from swift.rlhf_trainers import GRPOTrainer, grpo_trainer, rollout_mixin, utils

    # What the driver puts its own into: each is a table or a function that swift looks up by name when it is used.
    tables = [callable(module.profiling_context) for module in (utils, grpo_trainer, rollout_mixin)]
    return [RLHFArguments.__name__, GRPOTrainer.__name__, "accuracy" in orms, "early_stop" in callbacks_map, *tables]


# Not in _probes.py: what stands there is a part of every stack's checks, and all would be verified again.
SWIFT = [
    Probe(
        "swift has its GRPO trainer, and the tables that the driver adds to",
        "ms-swift",
        ["RLHFArguments", "GRPOTrainer", True, True, True, True, True],
        _swift_arguments,
    ),
]

if __name__ == "__main__":
    sys.exit(main(TRL_CPU + SWIFT))
