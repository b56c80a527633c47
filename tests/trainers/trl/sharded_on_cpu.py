"""TRL's driver with FSDP2 on CPUs: `python -m tests.trainers.trl.sharded_on_cpu <attempt.json>`; `lend_cpu` for others.

accelerate 1.15 takes an FSDP plugin on accelerators alone (state.py, AcceleratorState.__init__). Here it is taken where
processes meet by gloo; all that shards, gathers, saves and loads is torch's and accelerate's own.
"""

import sys

from accelerate.state import AcceleratorState, DistributedType, PartialState

from node.attempt import exit_code
from trainers.trl.driver.train import train


def lend_cpu():
    """Make accelerate shard there, too, as it does on GPUs."""
    make = AcceleratorState.__init__

    def made(state, *args, fsdp_plugin=None, **kwargs):
        make(state, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = state.distributed_type

    AcceleratorState.__init__ = made


if __name__ == "__main__":
    lend_cpu()
    sys.exit(exit_code(train))
