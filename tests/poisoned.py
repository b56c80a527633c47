"""A folder whose modules have the names of ours and of our libraries': where a user may stand."""

import importlib.metadata
import os
import sys
from pathlib import Path

import yaml

from .patience import run
from .trainers.command.script_bench import CONSOLE

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
ROOMS = ("common", "node", "engines", "trainers", "analysis", "workflow", "rules", "envs", "sitecustomize")
OF_STACKS = ("torch", "transformers", "datasets", "trl", "vllm", "ray", "safetensors", "tokenizers", "accelerate")
SCRIPT = """#!/bin/bash
env | grep -a ^PYTHON > env.txt
python3 say.py
"""
# A user's script relies on the folder of its program.
SAY = "import neighbour\nprint(neighbour.CONSOLE)\n"


class Folder:
    """A folder of somebody else, where the user stands."""

    def __init__(self, at):
        self.at, self.marker = at, at.parent / f"{at.name}-imported"
        (at / "wandb").mkdir(parents=True)
        names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), *ROOMS, *OF_STACKS}
        poison = (
            f"open({str(self.marker)!r}, 'a').write(__name__ + '\\n')\nraise ImportError('a module of the folder')\n"
        )
        for name in names - {"wandb"}:
            if name.isidentifier():
                (at / f"{name}.py").write_text(poison)
        (at / "wandb" / "__init__.py").write_text(poison)

    def run(self, *command, cpu_s=300, **env):
        variables = {name: text for name, text in os.environ.items() if not name.startswith(("WANDB_", "PYTHON"))}
        return run(
            [str(BIN / command[0]), *command[1:]],
            cpu_s,
            cwd=self.at,
            env=variables | {"HOME": str(self.at.parent)} | env,
        )

    def snakemake(self, config, *words, **env):
        """A workflow of this configuration, which is written here."""
        (self.at / "x.yaml").write_text(yaml.safe_dump(config))
        snakefile = str(ROOT / "workflow" / "Snakefile")
        return self.run("snakemake", "-s", snakefile, "--configfile", "x.yaml", *words, **env)

    def imported(self):
        return sorted(set(self.marker.read_text().split())) if self.marker.exists() else []


def script_of(folder):
    """An experiment `x` that trains by a user's script, which lies in a folder of its own."""
    folder.mkdir()
    (folder / "run.sh").write_text(SCRIPT)
    (folder / "say.py").write_text(SAY)
    (folder / "neighbour.py").write_text(f"CONSOLE = {CONSOLE!r}\n")
    arm = {"trainer": "command", "engine": "unknown", "options": {"script": str(folder / "run.sh")}}
    return {"experiment": "x", "baseline": "a", "arms": {"a": arm}}
