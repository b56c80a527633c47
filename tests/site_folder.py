"""A working directory in which tests run the whole pipeline, small."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from .attempts import COMPILER, EAGER
from .patience import run
from .two_arms import two_arms

ROOT = Path(__file__).resolve().parents[1]
STACKS = ("trl-transformers-cpu", "trl-vllm-cpu")


class Site:
    """A working directory with its own results, sharing the repository's built stacks."""

    def __init__(self, folder, profile=None, env=None):
        self.folder = folder
        self.profile = profile or ROOT / "profiles" / "local"
        self.snakefile = ROOT / "workflow" / "Snakefile"
        # As a user has it, without an activated environment.
        self.env = {**os.environ, **COMPILER, **EAGER, "PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})}
        self.results = folder / "results" / "small"
        self.config = two_arms()
        self.config |= {"experiment": "small", "seeds": [0], "warmup_steps": 1}
        self.config["workload"] |= {
            "steps": 4,
            "batch_size": 8,
            "num_generations": 4,
            "micro_batch_size": 4,
            "max_response_length": 24,
            "save_steps": 1,
        }
        self.config["workload"]["data"]["rows"] = 64
        (folder / ".stacks").symlink_to(ROOT / ".stacks")

    def command(self, *arguments):
        file = self.folder / "experiment.yaml"
        file.write_text(yaml.safe_dump(self.config, sort_keys=False))
        snakemake = Path(sys.executable).with_name("snakemake")
        return [
            *(str(snakemake), "--snakefile", str(self.snakefile), "--directory", str(self.folder)),
            *("--profile", str(self.profile), "--configfile", str(file), *arguments),
        ]

    def snakemake(self, *arguments):
        """Run Snakemake to its end."""
        return run(self.command(*arguments), 900, cwd=ROOT, env=self.env)

    def start(self):
        """Start Snakemake in a process group of its own; what it says goes to head.log."""
        with (self.folder / "head.log").open("a") as log:
            return subprocess.Popen(
                self.command(), cwd=ROOT, env=self.env, stdout=log, stderr=log, text=True, start_new_session=True
            )

    def attempts(self, run_id):
        return sorted(int(folder.name) for folder in (self.results / "runs" / run_id / "attempts").glob("[0-9]*"))
