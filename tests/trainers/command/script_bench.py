"""A run of a user's script for tests of the launcher: its programs are stand-ins that print a trainer's real lines."""

import contextlib
import json
import os
import stat
import sys

import psutil

from tests.job.run_bench import ROOT, RunBench
from tests.planted import INPUT, SCRIPT_LINE
from workflow.config.plan import load_plan

FORMATS = ROOT / "tests" / "goldens" / "data" / "formats"
CONSOLE = (FORMATS / "verl-console-vllm-0.log").read_text()
# Prints a console line by line; it notes how it was called, and waits at a line `WAIT` until a file `go` is there.
STAND_IN = r"""#!/bin/bash
printf '%s\n' "$0 $*" >> "$BENCH/calls"
console="$BENCH/console"
case "$*" in *=sglang*) [ -e "$BENCH/console-sglang" ] && console="$BENCH/console-sglang";; esac
while IFS= read -r line || [ -n "$line" ]; do
  if [ "$line" = WAIT ]; then while [ ! -e "$BENCH/go" ]; do sleep 0.05; done; continue; fi
  printf '%s\n' "$line"
done < "$console"
"""


def program(path, text=STAND_IN):
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class ScriptBench(RunBench):
    """A run folder, a project with a script, and programs on PATH."""

    def __init__(self, folder, script, console="", **options):
        limits = options.pop("limits", ())
        env = {"BENCH": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **options.pop("head_env", {})}
        super().__init__(folder, head_env=env, options=limits, run_id="a-s0")
        for name in ("python", "python3"):
            program(folder / "bin" / name)
        (folder / "console").write_text(console or CONSOLE)
        first, _, rest = script.partition("\n")
        planted = f"{first}\n# {INPUT}\n{SCRIPT_LINE}{rest}"
        self.script = program(folder / "project" / "run.sh", planted)
        self.spec = self.plan(**options).runs["a-s0"].spec

    def plan(self, **options):
        """The plan of an experiment with this script."""
        arm = {"trainer": "command", "engine": "unknown", "options": {"script": str(self.script), **options}}
        return load_plan({"experiment": "experiment", "baseline": "a", "arms": {"a": arm}})

    def command(self):
        """The launcher's command, without a stack and inputs."""
        command = [sys.executable, "-m", "workflow.head.launcher", str(self.run), "--spec", json.dumps(self.spec)]
        command += ["--inputs", "--stack", "--log", str(self.run / "launcher.log")]
        return [*command, "--resources", "cpus_per_task=2", *self.options]

    def go(self):
        """Let the programs go on that wait."""
        (self.folder / "go").touch()

    def own_processes(self):
        """What the script has started and is still alive."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("BENCH") == str(self.folder) and "ROLLOUTBENCH_SEED" in process.environ():
                    found.append(process)
        return found

    def end(self):
        """End everything, also what the script has put into the background."""
        super().end()
        for process in self.own_processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def calls(self):
        """How the programs were called."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.is_file() else []

    def console(self, attempt=1):
        """What an attempt has printed so far."""
        file = self.run / "attempts" / str(attempt) / "console.log"
        return file.read_text() if file.is_file() else ""
