"""A run's folder for tests of the launcher, with a stack whose Python runs the stand-in trainer."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from common.files import write_text
from workflow.job.place import Place
from workflow.job.rendezvous import TaskSetup

from ..programs import executable

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in_trainer.py")
RAY_TRAINER = Path(__file__).with_name("ray_trainer.py")


def task_setup(folder, hosts, rank, **environ):
    """A task of a job on these hosts, whose programs have these variables too."""
    return TaskSetup(
        place=Place(rank, hosts, 2, 0),
        folder=folder / "life",
        python=Path(sys.executable),
        environment={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        cwd=ROOT,
        log=folder / f"{rank}.log",
        beat_s=0.1,
    )


class RunBench:
    """A run folder with a stack whose Python runs the stand-in trainer."""

    def __init__(self, folder, steps=5, env=None, options=(), head_env=None, run_id="arm-s0"):
        self.folder, self.options, self.run_id = folder, options, run_id
        self.head_env = {**os.environ, **(head_env or {})}
        self.run = folder / "results" / "experiment" / "runs" / run_id
        self.inputs = folder / "inputs" / "inputs.json"
        self.heads = []
        self._words = {}
        python = folder / "stack" / "env" / "bin" / "python"
        if not python.is_file():  # runs of one folder share it, and read it while the next one is made
            executable(python, f'exec {sys.executable} {STAND_IN} "$@"')
            write_text(folder / "stack" / "verify.json", "{}")
            self.write_inputs("d1")
        self.write_spec("f" * 64, steps, env or {})

    def write_spec(self, fingerprint, steps=5, env=None):
        self.spec = {"run_id": self.run_id, "trainer": "trl", "fingerprint": fingerprint, "env": env or {}}
        self.spec["job_module"] = "stand_in"
        self.spec["workload"] = {"steps": steps}

    def spread_by_ray(self):
        """Its trainer wants a Ray: the stack's Python is asked for that, too, and runs the trainer as its module."""
        self.spec["ray"] = True
        python = self.folder / "stack" / "env" / "bin" / "python"
        python.write_text(
            f'#!/bin/sh\ncase "$*" in\n*" stand_in "*) exec {sys.executable} {RAY_TRAINER} "$@";;\n'
            f'*) exec {sys.executable} "$@";;\nesac\n'
        )

    def spread_by_torchrun(self):
        """Its trainer has a process for each GPU, or on a CPU for each node: the stack's Python is a real one."""
        self.spec |= {"spread": "torchrun", "job_module": "tests.job.ranks_trainer"}
        python = self.folder / "stack" / "env" / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')

    def spread_beside_a_server(self, gpus=0, patience_s=60.0):
        """Its trainer has an engine's server beside it."""
        self.spread_by_torchrun()
        server = {"module": "tests.job.stand_in_server", "gpus": gpus, "patience_s": patience_s}
        self.spec |= {"spread": "server", "server": server, "job_module": "tests.job.server_trainer"}

    def write_inputs(self, data):
        value = {"data": {"sha256": data}, "model": {"sha256": "m"}}
        write_text(self.inputs, json.dumps(value))
        for path in (self.inputs, self.inputs.parent):  # as the head leaves them, whatever the umask
            path.chmod(path.stat().st_mode & ~0o022)

    def command(self):
        command = [sys.executable, "-m", "workflow.head.launcher", str(self.run)]
        command += ["--spec", json.dumps(self.spec)]
        command += ["--inputs", str(self.inputs), "--stack", str(self.folder / "stack" / "verify.json")]
        command += ["--log", str(self.run / "launcher.log")]
        return [*command, "--resources", "cpus_per_task=2", *self.options]

    def start(self, until=0):
        """Start a head, and wait until a step was trained."""
        words = os.memfd_create("words")  # on no disk: a test may have filled it
        head = subprocess.Popen(
            self.command(), cwd=ROOT, env=self.head_env, stderr=words, text=True, start_new_session=True
        )
        self.heads.append(head)
        self._words[head.pid] = words
        if until:
            self.wait_for_step(until)
        return head

    def launch(self):
        head = self.start()
        said = self.ended(head)
        return subprocess.CompletedProcess(head.args, head.returncode, "", said)

    def ended(self, head, silence_s=60.0):
        """What a head has said, when it has ended."""
        self.wait(lambda: head.poll() is not None, silence_s)
        return self.said(head)

    def said(self, head):
        """What a head has said so far."""
        words = self._words[head.pid]
        return os.pread(words, os.fstat(words).st_size, 0).decode()

    def forget(self, head):
        """What a head that has ended had said; nothing of it is kept."""
        said = self.said(head)
        self.heads.remove(head)
        os.close(self._words.pop(head.pid))
        return said

    def wait(self, what, silence_s=40.0):
        """What becomes true; it fails when nothing happens any more: a busy machine is slow, but not silent."""
        seen, since = self._signs(), time.monotonic()
        look_at = since + 1
        while not (value := what()):
            if (now := time.monotonic()) < look_at:
                pass
            elif (signs := self._signs()) != seen:
                seen, since, look_at = signs, now, now + 1
            elif now > since + silence_s:
                raise AssertionError(f"did not happen, and nothing else did for {silence_s:g} s\n{self.state()}")
            time.sleep(0.1)
        return value

    def _signs(self):
        """What changes when something happens: the run's files with their sizes, and how much the heads have said."""
        found = {(pid, os.fstat(words).st_size) for pid, words in self._words.items()}
        for file in self.run.rglob("[!.]*"):
            with contextlib.suppress(OSError):
                found.add((file, file.stat().st_size))
        return found

    def wait_for_step(self, step):
        """Until a step was trained."""
        self.wait(lambda: self.steps_done() >= step)

    def steps_done(self):
        """The highest step that was trained."""
        return max((step for _, step in self.journal()), default=0)

    def wait_for_words(self, head, words):
        """Until a head has said something."""
        self.wait(lambda: words in self.said(head))

    def go(self):
        """Let a trainer go on that waits (STAND_IN_WAIT)."""
        (self.run / "go").touch()

    def state(self):
        """What a failed test shows: the heads' exit codes and what they said."""
        return "\n".join(f"head {head.pid}, exit code {head.poll()}: {self.said(head)}" for head in self.heads)

    def read(self, *parts):
        """A JSON file in the run's folder."""
        value = json.loads(self.run.joinpath(*parts).read_text())
        return value

    def journal(self):
        """(attempt, step) of every step that was trained."""
        return self.lines("journal")

    def lines(self, name):
        """The first two numbers in each line of a file of the stand-in's."""
        file = self.run / name
        lines = file.read_text().splitlines() if file.is_file() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def done(self):
        value = json.loads((self.run / "done.json").read_text())
        return value

    def output(self):
        """What the jobs themselves have said."""
        return "".join(file.read_text() for file in sorted(self.run.glob("submitit/*/*log.*")))

    def submitted(self):
        """How often a job was submitted."""
        return len(list((self.run / "submitit").glob("*")))

    def attempts(self):
        """How the attempts ended, oldest first; an empty object for one that has not said."""
        folders = sorted((self.run / "attempts").glob("*"), key=lambda folder: int(folder.name))
        files = [folder / "exit.json" for folder in folders]
        return [json.loads(file.read_text()) if file.is_file() else {} for file in files]

    def assert_trained_once(self):
        """Every step was trained, in order, and none again that an earlier attempt's checkpoint had."""
        assert not self.missing_steps() and not self.trained_twice(), self.journal()

    def missing_steps(self):
        """The steps of the run that were never trained."""
        return sorted(set(range(1, self.spec["workload"]["steps"] + 1)) - {step for _, step in self.journal()})

    def trained_twice(self):
        """How many steps were trained again although a checkpoint of an earlier attempt had them."""
        journal, saves, twice = self.journal(), self.lines("saves"), 0
        for attempt in {number for number, _ in journal}:
            saved = max((step for number, step in saves if number < attempt), default=0)
            twice += sum(number == attempt and step <= saved for number, step in journal)
        return twice

    def finish(self, head):
        """Wait for a head to end well, its run trained once; what it said."""
        said = self.ended(head)
        assert head.returncode == 0, said
        self.assert_trained_once()
        return said

    def processes(self):
        """The jobs and trainers of this run that are alive."""
        found = processes_with(str(self.run))
        return [process for process in found if "workflow.head.launcher" not in process.info["cmdline"]]

    def end(self):
        for head in self.heads:
            if head.poll() is None:
                head.kill()
            head.wait()
            os.close(self._words.pop(head.pid))
        self.heads.clear()
        while left := self.processes():  # until nothing is written any more to folders that are removed next
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.05)


def processes_with(word):
    """The processes of this machine with a word in their command line."""
    every = psutil.process_iter(["cmdline"])
    return [process for process in every if word in " ".join(process.info["cmdline"] or ())]
