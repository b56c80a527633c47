"""Starts SGLang's processes with the stand-ins, and makes them ignore the job's stop signals.

A process that SGLang spawns imports this module by name before it imports SGLang.
"""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Any

from engines.sglang import standins
from node.exit_codes import STOP_SIGNALS
from node.hardware import importing

if "__mp_main__" in sys.modules:  # the main module in a spawned process
    # Slurm signals all processes of a job, but the trainer needs its engine to finish the step.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
# Many kernels warn "Only CUDA supports …".
warnings.filterwarnings("ignore", category=UserWarning, module=r"sglang\.")
standins.install()


def scheduler(*args: Any, **kwargs: Any) -> None:
    """SGLang's process with the weights, which generates."""
    with importing():
        from sglang.srt.managers.scheduler import run_scheduler_process
        from sglang.srt.model_loader import weight_utils

    weight_utils.tqdm = weight_utils.DisabledTqdm  # keeps its progress bar out of the job's log
    run_scheduler_process(*args, **kwargs)
