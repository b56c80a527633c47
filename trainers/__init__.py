"""The trainers, a folder each: how a workload reads in a trainer's words, what runs in its stack, what it logs.

Loaded in the stacks, too: this file takes the standard library alone. The registry is in `registry.py`.
"""

# What a run's specification calls the module that trains it. These names are hashed into fingerprints, so they stay
# as they were when the modules had them; a finished run is never trained again because a file was moved.
_DRIVERS = {
    "workflow.jobs.trl_grpo": "trainers.trl.driver.train",
    "workflow.jobs.verl_grpo": "trainers.verl.driver.train",
}


def driver_module(job_module: str) -> str:
    """The module that a specification's `job_module` means today."""
    return _DRIVERS.get(job_module, job_module)
