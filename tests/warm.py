"""A stack's Python with its imports done: each program that runs in it is a fork, which begins where the imports end.

Importing a trainer and its engine takes longer than what most tests do with them. `python warm.py` is the process that
forks: it reads orders from its standard input, a line of JSON each, and answers with the id of a program that it has
started, or with the exit status of one that has ended.
"""

import atexit
import importlib.util
import inspect
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What jobs import, where the stack has it.
IMPORTS = (
    *("wandb", "datasets", "transformers.models.qwen2.modeling_qwen2"),
    *("verl.utils.dataset.rl_dataset", "verl.utils.tracking", "verl.trainer.ppo.reward", "verl.trainer.main_ppo"),
    *("trl.trainer.grpo_trainer", "swift.pipelines.train.rlhf", "swift.infer_engine"),
    *("vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen2"),
)
# pyarrow's allocator, which stops and starts its thread around a fork.
FORK_SAFE = {"jemalloc_bg_thd"}
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")  # as subprocess.Popen names them


class WarmJob:
    """A program that a `WarmPython` has started, with the part of `subprocess.Popen` that tests use.

    Its environment is that of its variables; /proc shows the environment of the process it was forked from.
    """

    def __init__(self, pid, files, wait):
        self.pid = pid
        self.returncode = None
        self._files, self._wait, self._ends = files, wait, os.pidfd_open(pid)

    def poll(self, timeout=0.0):
        """Its exit status if it ends within a time (None: as long as it takes)."""
        if self.returncode is None and select.select([self._ends], [], [], timeout)[0]:
            self.returncode = int(self._wait(self.pid))
            os.close(self._ends)
        return self.returncode

    def communicate(self, given=None, timeout=None):
        """Its output and its errors, when it has ended; `TimeoutExpired` if it has not."""
        if self.poll(timeout) is None:
            raise subprocess.TimeoutExpired("the program", timeout or 0.0)
        out, err = (file.read_text(encoding="utf-8") if file.exists() else "" for file in self._files)
        return out, err

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


class WarmPython:
    """Runs programs in forks of one process, until `close`.

    `environment` is that of the programs. `imports_in` adds what they set before they import: libraries read some
    variables only then.
    """

    def __init__(self, python, environment, imports_in, imports=IMPORTS):
        self._environment = {**environment, "PYTHONPATH": str(ROOT)}
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self._started = 0
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(Path(__file__).resolve()), *imports],
            cwd=ROOT,
            env={**self._environment, **imports_in},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *command, cpu_s=300.0, **options):
        """Run a program as `start` does, to its end."""
        from tests.patience import ended

        job = self.start(*command, **options)
        out, err = ended(job, cpu_s)
        assert job.returncode is not None
        return subprocess.CompletedProcess([*map(str, command)], job.returncode, out, err)

    def start(self, *command, given="", cwd=ROOT, env=None, alone=False, forks=False, joined=False):
        """Start a file, or `-m` and a module or `-c` and a text, with arguments, in a folder (by default the root).

        `env` is added to the environment, or with `alone` is all of it. With `forks` the Pythons that it starts are
        forks as well, with `joined` its errors are in its output.
        """
        self._started += 1
        given_in, out, err = (Path(self._folder.name, f"{self._started}-{name}") for name in ("in", "out", "err"))
        given_in.write_text(given, encoding="utf-8")
        files = [str(file) for file in (given_in, out, out if joined else err)]
        order = {"command": [*map(str, command)], "env": {**({} if alone else self._environment), **(env or {})}}
        os.umask(mask := os.umask(0))
        order |= {"files": files, "forks": forks, "cwd": str(cwd), "umask": mask}
        return WarmJob(int(self._ask(order)), (out, err), self._wait)

    def _wait(self, pid):
        return self._ask({"wait": pid})

    def _ask(self, order):
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        from tests.patience import until  # not at the top: what is forked has no psutil

        stdout = self._process.stdout
        until(lambda: select.select([stdout], [], [], 0.1)[0], self._process.pid)  # the first waits for the imports
        answer = stdout.readline()
        assert answer, f"the Python that forks ended with {self._process.wait()}: {order}"
        return answer

    def close(self):
        from tests.patience import ended

        ended(self._process, 60)  # without orders it ends
        self._folder.cleanup()


def serve():
    """Answer orders until there are no more; a fork returns, too, and ends as any Python does."""
    sys.path.pop(0)  # this file's folder
    from node.hardware import importing

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print as they are imported
    # Else each fork's end goes through all that was imported, too, which takes it two seconds.
    with importing():
        for name in sys.argv[1:]:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            require_one_thread()
            if (answer := os.fork()) == 0:
                return follow(order)
        answers.write(f"{answer}\n")
        answers.flush()


def require_one_thread():
    """A fork has no threads but its own: whoever waits for another's lock waits for ever."""
    threads = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    assert threads - FORK_SAFE <= {Path("/proc/self/comm").read_text().strip()}, threads


def follow(order):
    """Be the program that was asked for, as Python would have started it."""
    from node.ranks import die_with_parent

    die_with_parent()
    for place, name in enumerate(order["files"]):
        # Appending: several processes may write to one file.
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND if place else os.O_RDONLY), place)
    sys.stdin = os.fdopen(0, closefd=False)  # the other one has the orders in its buffer
    os.chdir(order["cwd"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["env"])
    if order["forks"]:
        fork_children()
    start(order["command"])


def fork_children():
    """Make `subprocess` start this Python's programs as forks, too, where they inherit streams, folder and session."""
    execute = subprocess.Popen._execute_child
    signature = inspect.signature(execute)

    def forked(*words):
        given = signature.bind(*words).arguments
        process, command = given["self"], given["args"]
        inherits = given["cwd"] is None and not given["start_new_session"] and all(given[one] == -1 for one in PIPES)
        if command[0] != sys.executable or not inherits:
            return execute(*words)
        require_one_thread()
        sys.stdout.flush()
        sys.stderr.flush()
        process.pid = os.fork()
        if process.pid == 0:
            subprocess.Popen._execute_child = execute
            become(command[1:], given)
        process._child_created = True
        return None

    subprocess.Popen._execute_child = forked


def become(command, given):
    """Run a program in a fork that began in the middle of another, and end as Python does."""
    code = 1
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if given["env"] is not None:
            os.environ.clear()
            os.environ.update(given["env"])
        if given["preexec_fn"]:
            given["preexec_fn"]()
        start(command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start(command):
    """Run a module, a text or a file as the main program."""
    sys.argv = ["-c", *command[2:]] if command[0] == "-c" else list(command[command[0] == "-m" :])
    if command[0] == "-m":
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    serve()
