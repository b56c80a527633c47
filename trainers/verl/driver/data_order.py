"""Continues a resumed run in the data order of its own pass.

verl 0.4.1 shuffles with torch's `RandomSampler` (main_ppo.py, create_rl_sampler), whose generator no checkpoint has.
data.pt has only the place within a pass, so a resumed run would repeat the first pass's order. The generator starts
from the same seed in each attempt: drawing the passes before the checkpoint sets it as in the uninterrupted run.
torchdata's own sampler (0.9.1) saves its generator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


def resume(original: Callable[..., Any], trainer: Any, *args: Any, **named: Any) -> Any:
    """Load a checkpoint, and draw the passes over the data that were complete before its last step."""
    from torch.utils.data import RandomSampler

    result = original(trainer, *args, **named)
    loader = trainer.train_dataloader
    if type(loader.sampler) is RandomSampler and trainer.global_steps > 0:
        # A pass that has given its last batch is not over yet: the loader first asks for one more.
        for _ in range((trainer.global_steps - 1) // len(loader)):
            deque(loader.sampler, maxlen=0)
    return result
