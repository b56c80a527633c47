"""Stacks: pinned environments, defined in `envs/`, locked with hashes, built under `.stacks/`.

Snakemake imports this at every parse, so it loads only `definition`.
"""

from workflow.stacks.definition import (
    Stack,
    built_dir,
    found_names,
    load_stack,
    lock_id,
    stack_names,
    stack_python,
    verify_id,
)

__all__ = [
    "Stack",
    "built_dir",
    "found_names",
    "load_stack",
    "lock_id",
    "stack_names",
    "stack_python",
    "verify_id",
]
