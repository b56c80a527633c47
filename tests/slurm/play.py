"""Plays scenarios, each a list of lines: what befalls a run, and what becomes of it (scenarios.toml)."""

import contextlib
import json
import os
import shlex
import signal
import time
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from workflow.runs.locks import try_lock

from ..job.run_bench import processes_with
from .runs import SlurmScript, cancel, fake, kill_with_its_submission, lose_the_node, preempt, rays, status, stopped


def scenarios(file, every_time=False):
    """The scenarios of a file, as pytest's parameters, with the promises that they show; one for `each` value."""
    for name, told in tomllib.loads(file.read_text(encoding="utf-8")).items():
        usual = "" if every_time or told.get("every_time") else "a scenario on a real Slurm"
        slow = told.get("full", usual)
        marks = [pytest.mark.promise(*told.get("promise", ())), *[pytest.mark.full(slow)] * bool(slow)]
        for number, value in enumerate(told.get("each", [""])):
            then = [line.replace("{each}", value) for line in told["then"]]
            yield pytest.param(told | {"then": then}, id=f"{name}-{number}" if value else name, marks=marks)


def play(scenario, make, folder, faults=None, **more):
    """Play one with a run that is made as it says."""
    options = [option.replace("{tmp}", str(folder)) for option in scenario.get("options", ())]
    told = {"steps": scenario.get("steps", 5), "options": tuple(options), **more}
    told["env"] = {f"STAND_IN_{name}".rstrip("_"): str(value) for name, value in scenario.get("env", {}).items()}
    if scenario.get("script"):
        setup = scenario.get("setup", "").replace("{tmp}", str(folder))
        told["kind"] = type("Script", (SlurmScript,), {"setup": setup})
    with contextlib.ExitStack() as held:
        one = make(head_env=scenario.get("head_env"), **told)
        if "spread" in scenario:
            getattr(one, f"spread_{scenario['spread']}")()
        for key, value in scenario.get("spec", {}).items():
            one.spec[key] |= value
        played = Play(one, folder, faults, held)
        for line in scenario["then"]:
            played.play(line)


def alike(found, wanted):
    """Whether a value of JSON is as wanted: an object may have more keys, and a wanted text is a pattern."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(alike(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(alike, found, wanted))
    return fnmatchcase(str(found), wanted) if isinstance(wanted, str) else bool(found == wanted)


class Play:
    """One scenario: each of its lines is a method's name and what it is given."""

    def __init__(self, one, folder, faults, held):
        self.one, self.folder, self.faults, self.held = one, folder, faults, held
        self.head, self.heads = None, []
        """The last head, and those that have not been seen to end."""

    def play(self, line):
        for name, value in (("{tmp}", self.folder), ("{run}", self.one.run)):
            line = line.replace(name, str(value))
        if "{job}" in line:
            line = line.replace("{job}", self.one.job_id())
        word, _, rest = line.partition(" ")
        getattr(self, f"do_{word}".rstrip())(rest.strip())

    # Heads

    def do_start(self, where):
        options = self.one.options
        if where == "here":
            self.one.options = ()
        self.head = self.one.start()
        self.heads.append(self.head)
        self.one.options = options

    def do_hears(self, words):
        """Until the head has said it."""
        self.one.wait_for_words(self.head, words)

    def do_says(self, words):
        assert words in self.one.said(self.head)

    def do_once(self, words):
        """The head has said it, and not again."""
        assert self.one.said(self.head).count(words) == 1

    def do_waits(self, _):
        assert self.head.poll() is None, self.one.said(self.head)

    def do_finishes(self, _):
        """All heads end well, every step was trained, and none again that a checkpoint had."""
        while self.heads:
            self.one.finish(self.heads.pop())

    def do_fails(self, words):
        """The head ends with these words, and without a traceback of its own: it may quote its trainer's."""
        self.heads.remove(self.head)
        said = self.one.ended(self.head)
        assert self.head.returncode == 1 and words in said and "\nTraceback" not in f"\n{said}", said

    def do_kill(self, what):
        """The head, perhaps `with its submission`; the run's `node`, its `server`, or its `job` on this machine."""
        if what == "node":
            return self.one.cluster.kill_node(self.one.jobs()[0]["nodes"])
        if what == "server":
            return os.kill(self.one.read("attempts", "1", "server.json")["pid"], signal.SIGKILL)
        if what == "job":
            for process in self.one.processes():
                if "submitit" in " ".join(process.info["cmdline"]):
                    process.kill()
            return
        self.heads.remove(self.head)
        kill_with_its_submission(self.head) if what else self.head.kill()
        self.head.wait()
        self.head = self.heads[-1] if self.heads else None

    def do_interrupt(self, _):
        os.killpg(self.head.pid, signal.SIGINT)

    def do_lines(self, most):
        """The head has said no more of them."""
        assert self.one.said(self.head).count("\n") <= int(most)

    def do_spec(self, told):
        """What is started from now on has another fingerprint, a letter, and so many steps."""
        letter, steps = told.split()
        self.one.write_spec(letter * 64, int(steps))

    # The trainer and its lives

    def do_step(self, number):
        self.one.wait_for_step(int(number))

    def do_more(self, number):
        """It goes on training."""
        self.one.wait_for_step(self.one.steps_done() + int(number))

    def do_life(self, number):
        """Until the attempt of this number trains."""
        self.one.wait(lambda: self.one.journal() and self.one.journal()[-1][0] == int(number))

    def do_attempt(self, number):
        self.one.wait(lambda: len(self.one.attempts()) == int(number))

    def do_logs(self, words):
        """Until the newest attempt's trainer has written it."""
        self.one.wait(lambda: any(words in log.read_text() for log in self._newest("log")))

    def do_ends(self, how):
        """Until the newest attempt has ended: its kind, cause or exit code. `well`: the head, whatever was trained."""
        if how == "well":
            self.heads.remove(self.head)
            said = self.one.ended(self.head)
            assert self.head.returncode == 0, said
            return
        end = self.one.wait(lambda: self.one.attempts() and self.one.attempts()[-1])
        assert how in (end["kind"], end.get("cause"), str(end.get("code"))), end

    def do_go(self, _):
        self.one.go()

    def do_signal(self, name):
        """As somebody who looks, or slurmd, sends it to the job's own process."""
        for process in self.one.processes():
            if "workflow.job.begin" in process.info["cmdline"] and process.name() != "srun":
                process.send_signal(signal.Signals[f"SIG{name}"])

    def _newest(self, name):
        folders = sorted((self.one.run / "attempts").glob("*"), key=lambda folder: int(folder.name))
        return [file for folder in folders[-1:] if (file := folder / name).is_file()]

    # Slurm

    def do_given(self, parts):
        """What Slurm says of the job, parts of `scontrol show job`; or until it says so: `given in the end ...`."""
        parts, at_last = parts.removeprefix("in the end "), parts.startswith("in the end ")

        def lacks():
            told = self.one.cluster.run("scontrol", "show", "job", "-o", self.one.job_id()).stdout
            return [part for part in parts.split(" | ") if part not in told]

        if at_last:
            self.one.wait(lambda: not lacks())
        assert not lacks(), lacks()

    def do_slurm(self, command):
        self.one.cluster.run(*shlex.split(command))

    def do_preempt(self, _):
        preempt(self.one)

    def do_release(self, _):
        self.one.release()

    def do_others(self, command):
        """Somebody else's job has all GPUs."""
        self.one.cluster.run("sbatch", "-p", "h100", "-N2", "--gres=gpu:h100:8", f"--wrap={command}")
        self.one.wait(lambda: any(job["state"] == "RUNNING" for job in self.one.cluster.jobs()))

    def do_down(self, daemon):
        self.one.cluster.stop_daemon(daemon)

    def do_up(self, daemon):
        self.one.cluster.start_daemon(daemon)

    def do_lose(self, _):
        lose_the_node(self.one)

    def do_rename(self, names):
        """A node has another name from now on, and its slurmd is not started under that."""
        cluster, (old, new) = self.one.cluster, names.split()
        for name in ("slurmctld", old):
            cluster.stop_daemon(name)
        for file in (cluster.conf, cluster.folder / "gres.conf"):
            file.write_text(file.read_text().replace(old, new))
        cluster.start_daemon("slurmctld")

    def do_hurries(self, _):
        """Until the head has ended, a requeued job need not wait."""
        while self.head.poll() is None:
            self.do_slurm(f"scontrol update jobid={self.one.job_id()} StartTime=now")
            time.sleep(2)

    def do_forget(self, _):
        """A new slurmctld knows of no job, and the nodes lose their power meanwhile."""
        self.one.cluster.stop_daemon("slurmctld")
        for file in (self.one.cluster.folder / "state").glob("job_state*"):
            file.unlink()
        for node in ("gpu1", "gpu2"):
            self.one.cluster.kill_node(node)
        for daemon in ("slurmctld", "gpu1", "gpu2"):
            self.one.cluster.start_daemon(daemon)

    def do_fake(self, script):
        """A command of Slurm does something else; $real is the true one."""
        command, script = script.split(None, 1)
        self.one.head_env |= fake(self.folder, command, script)

    def do_true(self, _):
        """All commands are the true ones again."""
        self.one.head_env |= {"PATH": os.environ["PATH"]}

    def do_queued(self, number):
        self.one.wait(lambda: [job["state"] for job in self.one.jobs()] == ["PENDING"] * int(number))

    def do_suspended(self, looks):
        """Slurm suspends the job: so many looks at squeue later it stands still, and goes on when it is resumed."""
        self.do_slurm(f"scontrol suspend {self.one.job_id()}")
        self.one.wait(lambda: "suspended" in status(self.one))
        self.one.wait(lambda: stopped(self.one))  # the controller says so before the node has done it
        steps = self.one.steps_done()
        self.do_looks(looks)
        assert "suspended" in status(self.one) and self.one.steps_done() == steps
        self.do_slurm(f"scontrol resume {self.one.job_id()}")
        self.one.wait_for_step(steps + 3)

    def do_stale(self, _):
        """What accounting says of the job, where it is told to say more than is true."""
        told = [self.one.job_id(), "PREEMPTED", "0:0", "gpu1", self.one.read("order.json")["name"]]
        (self.folder / "stale").write_text("\x1f".join(told) + "\n")

    def do_looks(self, times):
        self.one.looks(int(times))

    # Files

    def do_file(self, pattern):
        """Until there is one."""
        self.one.wait(lambda: [*Path("/").glob(pattern[1:])])

    def do_no(self, what):
        """`no file NAME`: it is not there; `no faults`: what is started from now on reads its files as they are."""
        if what == "faults":
            for name in ("LD_PRELOAD", "RB_FAULT_FILE", "RB_CLOCK_S"):
                self.one.head_env.pop(name, None)
        else:
            assert not Path(what.partition(" ")[2]).exists()

    def do_reads(self, words):
        """Until the files of a pattern have these words."""
        pattern, words = words.split(None, 1)
        self.one.wait(lambda: words in "".join(file.read_text() for file in Path("/").glob(pattern[1:])))

    def do_shows(self, value):
        """A JSON file has these values."""
        file, wanted = value.split(None, 1)
        assert alike(found := json.loads(Path(file).read_text()), json.loads(wanted)), found

    def do_write(self, text):
        """A file, such as a script."""
        file, _, text = text.partition(" ")
        Path(file).write_text(f"{text}\n")

    def do_touch(self, file):
        Path(file).touch()

    def do_remove(self, pattern):
        for file in Path("/").glob(pattern[1:]):
            file.unlink()

    def do_move(self, files):
        """One file to where another is."""
        Path(files.split()[0]).rename(files.split()[1])

    def do_lock(self, file):
        """Another process has it, until `unlock`."""
        self.held.enter_context(try_lock(Path(file)))

    def do_unlock(self, _):
        self.held.close()

    def do_faults(self, _):
        """What is started from now on can be refused its files."""
        self.one.head_env |= {"LD_PRELOAD": str(self.faults), "RB_FAULT_FILE": str(self.folder / "faults")}

    def do_refuse(self, faults):
        """These files are refused (faults.c); without a word none is any more."""
        if faults:
            (self.folder / "faults").write_text("".join(f"{line.strip()}\n" for line in faults.splitlines()))
        else:
            (self.folder / "faults").unlink()

    # What becomes of it

    def do_attempts(self, number):
        assert len(self.one.attempts()) == int(number), self.one.attempts()

    def do_steps(self, number):
        assert len(self.one.journal()) == int(number), self.one.journal()

    def do_jobs(self, number):
        """How often a job was submitted: `2`, or `1 or 2`."""
        assert str(self.one.submitted()) in number.split(" or ")

    def do_other(self, _):
        """The second attempt ran on another node than the first."""
        first, second = (self.one.read("attempts", number, "attempt.json")["slurm"]["nodes"] for number in "12")
        assert first != second

    def do_prints(self, words):
        """Until a job itself has said it, or so often: `prints 6 times ...`; `prints nothing of ...`: it has not."""
        if words.startswith("nothing of "):
            assert words.removeprefix("nothing of ") not in self.one.output()
            return
        times, _, often = words.partition(" times ")
        self.one.wait(lambda: self.one.output().count(often or words) >= (int(times) if often else 1))

    def do_recorded(self, _):
        self.one.wait(lambda: self.one.read("order.json")["job_ids"])

    def do_ended(self, what):
        """No process of the run is left, nor of its Ray, nor of a trainer's daemon."""
        self.one.wait(lambda: not self.one.processes() and not rays(self.one.folder))
        self.one.wait(lambda: not what or not processes_with(f"left-{self.one.folder.name}"))

    def do_gone(self, _):
        """Nor a job."""
        self.one.wait(lambda: not self.one.jobs())
        self.do_ended("")

    # Commands

    def do_cancel(self, words):
        run, _, said = words.partition(": ")
        assert said in cancel(self.one, *[run] * (run != "all"))

    def do_cancelled(self, by):
        end = {"kind": "cancelled", "by": by.split()[-1], "order": self.one.read("order.json")["start"]}
        (self.one.run / "end.json").write_text(json.dumps(end))

    def do_status(self, words):
        """One of these."""
        said = status(self.one)
        assert any(word in said for word in words.split("|")), said
