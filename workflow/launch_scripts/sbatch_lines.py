"""Reads a script's `#SBATCH` lines into a profile's keys."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from common.redaction import has_secret
from trainers.launching import Left
from workflow.slurm.sbatch import Option, meanings_of, options_of


def options_of_script(text: str) -> list[Option]:
    """The options in a script's `#SBATCH` lines."""
    return [option for line, words in _sbatch_lines(text) for option in options_of(words, line)[0]]


def _sbatch_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each `#SBATCH` line; sbatch reads none behind the first command."""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith("#SBATCH"):
            try:
                yield number, shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError:
                yield number, line.removeprefix("#SBATCH").split()
        elif line and not line.startswith("#"):
            return


def keys_of(options: Sequence[Option]) -> tuple[dict[str, str], list[Left]]:
    """A profile's keys and their texts, from a script's options; and what has no place in a profile."""
    request: dict[str, str] = {}
    left: list[Left] = []
    extra: list[str] = []
    for option, key, text, reason in meanings_of(options):
        if key == "nodelist":
            why = "all runs would wait for these nodes; the profile is without them"
            left.append(Left(option.line, option.text, why, "for equal hardware, add nodelist to the profile"))
        elif key:
            request[key] = text
        elif not reason and has_secret(option.text):
            left.append(Left(option.line, f"--{option.name}", "looks like a secret: no file of an experiment has one"))
        elif not reason:
            extra.append(option.text)
        elif not option.name.startswith("ntasks"):  # they are in the CPUs and GPUs of a node
            left.append(Left(option.line, option.text, reason))
    if extra:
        request["slurm_extra"] = shlex.join(extra)
    return request, left


def train_keys(request: Mapping[str, str]) -> dict[str, str]:
    """A profile's keys of `train`: what a script requests, else the partition's defaults."""
    unsaid = {"slurm_partition": "", "cpus_per_task": "0", "mem_mb": "0", "runtime": "0"}
    return {**unsaid, **request}
