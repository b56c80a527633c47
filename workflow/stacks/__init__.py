"""Stacks: pinned environments, defined in `envs/`, locked with hashes, built under `.stacks/`.

Snakemake imports this at every parse, so only `definition` (standard library and yaml) is loaded here.
"""

from workflow.stacks.definition import (
    Stack,
    built_dir,
    load_stack,
    lock_id,
    stack_environment,
    stack_names,
    stack_python,
)

__all__ = ["Stack", "built_dir", "load_stack", "lock_id", "stack_environment", "stack_names", "stack_python"]
