"""A short fault of a shared file system ends no training: what reads a shared file tries again, or reads it later."""

import ast
import errno
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.retry import keep_watching, present
from node.exit_codes import RequeueError
from node.hf_training import newest_checkpoint
from trainers.verl.driver import in_ray, step_hooks

from .node.test_files import make_checkpoint
from .source import ROOT, tree
from .trainers.verl.test_verl_checkpoints import prepare, write_checkpoint

pytestmark = pytest.mark.promise("files-that-cannot-be")

# All that runs on a node between an attempt's start and its end.
DURING_A_TRAINING = (
    *("node/*.py", "engines/**/*.py", "trainers/*/driver/*.py"),
    *(f"workflow/job/{name}.py" for name in ("job", "training", "ray", "torchrun", "server", "rendezvous", "stopping")),
)
METHODS = {
    *("exists", "is_file", "is_dir", "is_symlink", "stat", "lstat", "iterdir", "glob", "rglob", "touch", "unlink"),
    *("read_text", "read_bytes", "write_text", "write_bytes", "attempts", "jobs"),
}
# Functions of this project that raise OSError, so that a file that cannot be read does not count as missing.
FUNCTIONS = {
    *("exists", "read_json", "read_object", "reached_step", "without_new_step", "dump_stacks", "try_lock"),
    *(
        "finished_attempt",
        "matching_attempts",
        "attempts_of_order",
        "end_of",
        "write_end",
        "end_reason",
        "write_json",
        "write_text",
        "open",
    ),
}
GUARDS = {"retry_io", "keep_watching"}
# Why a file or a function of it may read without a guard.
EXCEPTIONS = {
    "node/dataset.py": "prepares the inputs, before any training; snakemake reports its error and keeps nothing",
    "node/inputs.py": "the same",
    "node/policy.py": "the same",
    "engines/printed.py": "the analysis reads logs with it, after the training",
    "node/reward_model.py:reward_model_problem": "the same",
    "node/hooks.py:rows": "a file of ours beside the modules, read as they are: before the first step",
    "engines/engine.py:engine_in": "the same",
    "node/hf_training.py:is_complete": "`newest_checkpoint` tries all of it again",
    "node/hf_training.py:_has_content": "the same",
    "trainers/verl/driver/checkpoints.py": "`prepare` tries all of it again",
    "trainers/swift/driver/arguments.py:resolved": "the temporary folder of this machine, on which nothing trains",
    "node/hardware.py:process_tree": "/proc of this node",
    "trainers/verl/driver/composed.py:_config_folder": "verl's own files, read like its modules before training begins",
    "workflow/job/stopping.py:dump_stacks": "its caller goes on without the stacks",
    "engines/sglang/server.py:_watch": "/proc and /dev/shm of this node",
    "workflow/job/ray.py:_find_address": "the temporary folder of this node",
}
# A thread that waits once, for a process or a task, and reads no file.
THREADS = {
    "common/retry.py:keep_watching",
    "trainers/swift/driver/serve.py:main",
    "trainers/swift/driver/serve.py:submit",
    "trainers/verl/driver/in_ray.py:_wait",
}


def name_of(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def catches(kinds):
    """Whether an `except` or a `suppress` of these kinds catches OSError."""
    return kinds is None or bool({"OSError", "Exception", "BaseException"} & {*re.findall(r"\w+", ast.unparse(kinds))})


class Reads(ast.NodeVisitor):
    """The unguarded reads of a file, as `function: line`; functions that a guard calls are guarded."""

    def __init__(self, tree):
        self.bare = []
        self.threads = []
        self._function, self._guarded = "", False
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and name_of(node) in GUARDS]
        inside = [node for call in calls for argument in call.args for node in ast.walk(argument)]
        self._retried = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in inside}
        self.visit(tree)

    def _within(self, nodes, guarded):
        before, self._guarded = self._guarded, self._guarded or guarded
        for node in nodes:
            self.visit(node)
        self._guarded = before

    def visit_FunctionDef(self, node):
        before = self._function, self._guarded
        self._function, self._guarded = node.name, node.name in self._retried
        self.generic_visit(node)
        self._function, self._guarded = before

    def visit_Try(self, node):
        self._within(node.body, any(catches(handler.type) for handler in node.handlers))
        self._within([*node.handlers, *node.orelse, *node.finalbody], False)

    def visit_With(self, node):
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        guarded = any(name_of(call) == "suppress" and any(map(catches, call.args)) for call in calls)
        self._within([*node.items, *node.body], guarded)

    def visit_Call(self, node):
        name = name_of(node)
        if name == "Thread":
            self.threads.append(self._function)
        reads = name in (METHODS if isinstance(node.func, ast.Attribute) else FUNCTIONS)
        if reads and not self._guarded:
            self.bare.append((self._function, node.lineno))
        self._within(ast.iter_child_nodes(node), name in GUARDS)


def reads():
    files = sorted({file for pattern in DURING_A_TRAINING for file in ROOT.glob(pattern)})
    return {str(file.relative_to(ROOT)): Reads(tree(file)) for file in files}


def test_what_runs_during_a_training_reads_no_shared_file_without_a_guard():
    """`retry_io`, `present`, or an `except OSError` that reads it later."""
    found = reads()
    bare = {f"{file}:{function}": f"{file}:{line}" for file, one in found.items() for function, line in one.bare}
    wrong = [place for key, place in bare.items() if key not in EXCEPTIONS and key.partition(":")[0] not in EXCEPTIONS]
    assert not wrong
    assert not [one for one in EXCEPTIONS if not any(one in (key, key.partition(":")[0]) for key in bare)]


def test_threads_that_watch_are_started_in_one_place():
    found = {f"{file}:{function}" for file, one in reads().items() for function in one.threads}
    assert found <= THREADS


@pytest.fixture
def stale(monkeypatch):
    """A file system that refuses to look at files of a name, some times."""

    def refuse(part, times):
        left = [times]

        def failing(of, name):
            real = getattr(of, name)

            def call(path, *args, **named):
                if part in str(path) and left[0] > 0:
                    left[0] -= 1
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
                return real(path, *args, **named)

            monkeypatch.setattr(of, name, call)

        for name in ("stat", "open", "touch", "iterdir"):
            failing(Path, name)

    return refuse


def test_present_says_when_it_cannot_be_known(tmp_path, stale):
    (tmp_path / "stop").touch()
    stale("stop", 1)
    assert [present(tmp_path / "stop"), present(tmp_path / "stop"), present(tmp_path / "no")] == [None, True, False]


def test_a_watching_thread_outlives_its_errors(capfd):
    over, looks = threading.Event(), []

    def look():
        looks.append(len(looks))
        if len(looks) == 4:
            over.set()
        raise RuntimeError("a broken look")

    keep_watching(look, over, 0.01, "requests").join(10)
    assert len(looks) == 4
    assert capfd.readouterr().err.count("requests: RuntimeError: a broken look") == 1


def test_a_step_of_verl_outlives_a_stale_request(tmp_path, stale):
    one = step_hooks.StepHooks(tmp_path)
    one._trainer = SimpleNamespace(config=SimpleNamespace(trainer=SimpleNamespace(save_freq=9)))
    (tmp_path / "stop").touch()
    stale("stop", 1)
    assert not one._wanted(step_hooks.STOP)
    one._look()
    assert one._trainer.config.trainer.save_freq == 1
    stale("stop", 9)
    assert one._wanted(step_hooks.STOP)  # seen once, it holds


def test_a_stop_reaches_verl_once_the_files_answer(tmp_path, stale):
    stop = in_ray.Stop(tmp_path)
    (tmp_path / "training").touch()
    stop._name = "SIGTERM"
    stale("stop", 1)
    stop.check()
    assert not list(tmp_path.glob("stop"))
    stale("training", 1)
    stop.check()  # whether there is something to save is unknown: no requeue as before the first step
    stop.check()
    assert (tmp_path / "stop").exists()
    other = in_ray.Stop(tmp_path / "other")
    (tmp_path / "other").mkdir()
    other._name = "SIGTERM"
    with pytest.raises(RequeueError):
        other.check()


def test_a_stale_checkpoint_is_not_an_incomplete_one(tmp_path, stale):
    make_checkpoint(tmp_path, 4)
    make_checkpoint(tmp_path, 6)
    stale("checkpoint-6/", 1)
    assert newest_checkpoint(tmp_path) == 6


def test_a_stale_checkpoint_of_verl_is_not_removed(tmp_path, stale):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step)
    stale("global_step_30/data.pt", 1)
    assert prepare(tmp_path) == (30, [20, 30])
