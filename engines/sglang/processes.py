"""Begins SGLang's own processes: with the stand-ins, and deaf to the job's stop signals.

To be imported by name in a process that SGLang spawns: it is loaded there before anything of SGLang's.
"""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Any

from engines.sglang import standins
from node.exit_codes import STOP_SIGNALS
from node.hardware import importing

if "__mp_main__" in sys.modules:  # multiprocessing's name of the main module in a process that it spawned
    # Slurm signals all processes of a job. The trainer finishes its step, for which it needs its engine.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
# "Only CUDA supports …", of many kernels.
warnings.filterwarnings("ignore", category=UserWarning, module=r"sglang\.")
standins.install()


def scheduler(*args: Any, **kwargs: Any) -> None:
    """SGLang's process that holds the weights and generates."""
    with importing():
        from sglang.srt.managers.scheduler import run_scheduler_process
        from sglang.srt.model_loader import weight_utils

    weight_utils.tqdm = weight_utils.DisabledTqdm  # its bar would be in the job's log
    run_scheduler_process(*args, **kwargs)
