"""A working directory for whole workflows in seconds: the stacks' Python is a stand-in, everything else is real."""

import json
import sys

from workflow.stacks import load_stack, lock_id
from workflow.stacks.definition import verify_id

from .importing import ROOT, snakemake_in
from .job.run_bench import STAND_IN
from .programs import executable
from .site_folder import STACKS, Site

# Composes what `settings.json` says, prepares inputs that nobody reads, and trains as the stand-in does.
PYTHON = """#!{python}
import json, os, sys
from pathlib import Path
def option(name):
    return Path(sys.argv[sys.argv.index(name) + 1])
started = next(word for word in sys.argv if word == "-m" or word.endswith("common/module.py"))
module = sys.argv[sys.argv.index(started) + 1]
with open({jobs!r}, "a") as jobs:
    print(module, file=jobs)
if module == "trainers.resolve":
    composed = {{"version": "1.16", "settings": json.loads(Path({settings!r}).read_text())}}
    option("--out").write_text(json.dumps(composed))
elif module == "node.inputs":
    made = {{"data": {{"sha256": "d", "rows": 64}}, "model": {{"sha256": "m"}}}}
    (option("--out") / "inputs.json").write_text(json.dumps(made))
else:
    os.execv(sys.executable, [sys.executable, {stand_in!r}, sys.argv[-1]])
"""


class QuickSite(Site):
    """A working directory whose stacks are stand-ins; `composed` is what they make of every trainer's settings."""

    def __init__(self, folder, stacks=STACKS, **more):
        super().__init__(folder, **more)
        self.jobs, self.composed = folder / "jobs", folder / "settings.json"
        self.compose()
        (folder / ".stacks").unlink()
        words = {"jobs": str(self.jobs), "settings": str(self.composed), "stand_in": str(STAND_IN)}
        for name in stacks:
            stack = load_stack(name)
            lock = lock_id(stack)
            made = folder / ".stacks" / name / lock
            executable(made / "env" / "bin" / "python", PYTHON.format(python=sys.executable, **words))
            verdict = {"ok": True, "lock_id": lock, "verify_id": verify_id(stack)}
            for file in ("verify.json", f"verify-{verify_id(stack)}.json"):
                (made / file).write_text(json.dumps(verdict))
            (made / "env" / "origin.json").write_text("{}")

    def snakemake(self, *arguments):
        return snakemake_in(ROOT, self.command(*arguments), self.env)

    def compose(self, **settings):
        self.composed.write_text(json.dumps(settings))

    def trained(self):
        """How many trainings have begun."""
        modules = self.jobs.read_text().split() if self.jobs.exists() else []
        return sum("driver" in module for module in modules)
