"""One attempt of a user's script: `python -m trainers.command.driver ATTEMPT`, in the controller's Python.

A copy with the varied words runs in the script's folder, in its own session. Success is exit code 0 and a log with
steps, which another program counts. Exit codes: node/exit_codes.py. Standard library only.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.contracts import DoneFile
from common.errors import UserError
from common.files import ROOT, last_lines, module_command, open_private, read_json, write_json, write_private
from common.redaction import without_secrets
from common.retry import append_json_line, retry_io
from node.attempt import exit_code, read_spec
from node.exit_codes import FAILED, RequeueError, StopRequest
from node.hardware import machine, reported_environment
from node.ranks import die_with_this_process

READER = "workflow.launch_scripts.log"
"""The program that reads the log: `python -m READER RUN_FOLDER --attempt N` prints a JSON object, or an error."""
CONSOLE, LOGS, ENDED = "console.log", "read", "ended"
"""In an attempt's folder: what the script printed, the log files that it wrote, and a file that marks exit code 0."""
SCRIPT_PATH = "ROLLOUTBENCH_SCRIPT"
"""The variable with the script's own path, which its copy has in place of `$0`."""
VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Z_][A-Z0-9_]*\})")
"""A variable in a word's value. `${trainer.name}` is Hydra's, and `$(...)` is text."""
_PR_SET_CHILD_SUBREAPER = 36
_FILES = "the run's files"
_POLL_S, _LOGS_EVERY_S = 0.2, 60.0
_TAIL_LINES = 15
_EVENTS = ("*.wandb", "events.out.tfevents.*")
_PACKAGES = re.compile(
    r"(torch|triton|transformers|vllm|sglang|lmdeploy|verl|trl|ms_swift|nemo_rl|openrlhf|slime|ray|flash_attn|numpy"
    r"|accelerate|deepspeed|nvidia_nccl_cu\d+)-([^-]+)\.dist-info"
)
# A step of srun inside our own one sees the whole job again, as in a batch script.
_OF_STEP = re.compile(r"SLURM_(STEP|CPU_BIND|SRUN_COMM|MEM_BIND|DISTRIBUTION|NTASKS|NPROCS|TASKS_PER_NODE|TRES_PER)")


def keep(spec: Mapping[str, Any], run_folder: Path) -> None:
    """Keep the copy that a job will run: a script that is edited while the job waits does not change the run."""
    settings, script = spec["trainer_args"], _script(spec["trainer_args"], run_folder)
    try:
        text = script.read_bytes()
    except OSError as error:
        raise UserError(f"the script {script} cannot be read ({error.strerror}); nothing was submitted") from None
    if hashlib.sha256(text).hexdigest() != settings["sha256"]:
        raise UserError(f"{script} changed since the run was planned; start snakemake again (nothing was submitted)")
    # Scripts export keys.
    write_private(_kept(spec, run_folder), edited(text, settings["edits"]))


def edited(text: bytes, edits: Iterable[Iterable[Any]]) -> bytes:
    """A copy of a script with its edits: each one's first byte, the byte behind its last, and the text instead."""
    for start, end, new in sorted(map(tuple, edits), reverse=True):
        text = text[:start] + new.encode() + text[end:]
    return text


def run_script(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Run the script to its end and write done.json; `RequeueError` if it was stopped."""
    spec, folder = read_spec(attempt), Path(attempt["attempt_dir"])
    settings, run_folder = spec["trainer_args"], folder.parents[1]
    if (found := _ended_before(attempt, folder)) is not None:
        return _write_done(attempt, found, found["began"], found["finished"])
    command, cwd, environment = prepared(spec, folder)
    began, before = time.time(), {path: path.stat() for path in _logs(settings, cwd)}
    stop.training = True

    def log_state() -> list[int]:
        return [path.stat().st_size for path in _logs(settings, cwd)]

    code = _run(command, cwd, environment, folder / CONSOLE, stop, log_state)
    _keep_logs(settings, cwd, before, folder / LOGS)
    found, problem = _read_log(run_folder, attempt["attempt"])
    if found:
        line = {"step": found["last_step"], "time": time.time(), "phases": {}}
        append_json_line(folder / "metrics.jsonl", line | {"scalars": {"timing_s/step": found["step_s"]}})
    if stop.requested:
        again = "continues from its own checkpoint" if settings["resume"] == "script" else "begins again"
        raise RequeueError(f"the script was stopped; the next attempt {again} (options.resume)")
    if code:
        print(without_secrets("\n".join(last_lines(folder / CONSOLE, _TAIL_LINES))), flush=True)
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        print(f"error: the script ended with {how}; all that it printed: {folder / CONSOLE}", flush=True)
        sys.exit(FAILED)
    (folder / ENDED).touch()
    if not found:
        raise UserError(_without_steps(folder / CONSOLE, problem))
    _write_done(attempt, found, began, time.time())


def _ended_before(attempt: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """What the log of an earlier attempt has, whose script ended well and whose log could not be read then.

    That training is not started again. Its log moves to this attempt.
    """
    for other in sorted(folder.parent.iterdir(), key=lambda path: int(path.name), reverse=True):
        if other == folder or not (other / ENDED).exists():
            continue
        request = read_json(other / "attempt.json")
        if request["fingerprint"] != attempt["fingerprint"]:
            continue
        found, _ = _read_log(folder.parents[1], int(other.name))
        if found:
            print(f"attempt {other.name} has ended with exit code 0; its log can be read now", flush=True)
            for name in (CONSOLE, LOGS):
                if (other / name).exists():
                    (other / name).rename(folder / name)
            return found | {"began": request["started"], "finished": (other / ENDED).stat().st_mtime}
    return None


def prepared(spec: Mapping[str, Any], folder: Path) -> tuple[list[str], Path, dict[str, str]]:
    """The command, the working directory and the environment of an attempt's script, whose copy is written now."""
    settings, run_folder = spec["trainer_args"], folder.parents[1]
    script = _script(settings, run_folder)
    cwd = _from_start(settings["cwd"], run_folder) if settings["cwd"] else script.parent
    if not cwd.is_dir():
        raise UserError(f"options.cwd: no such folder: {cwd}")
    copy, text = folder / script.name, retry_io(_kept(spec, run_folder).read_bytes, _FILES)
    write_private(copy, text)
    flags = re.match(rb"#!.*sh[ \t]+(-.+)", text)  # of `#!/bin/bash -l`
    shell = ["bash", *(flags[1].decode().split() if flags is not None else [])]
    command = [*_container(settings, [cwd, folder]), *shell, str(copy), *settings["arguments"]]
    return command, cwd, _environment(os.environ, spec, script, folder.name)


def _script(settings: Mapping[str, Any], run_folder: Path) -> Path:
    return _from_start(settings["script"], run_folder)


def _from_start(path: str, run_folder: Path) -> Path:
    """A path as seen from the folder where snakemake was started: results/<experiment>/runs/<run> is there."""
    return run_folder.parents[3] / Path(path).expanduser()


def _kept(spec: Mapping[str, Any], run_folder: Path) -> Path:
    return run_folder / f"script-{spec['fingerprint'][:12]}"


def _container(settings: Mapping[str, Any], folders: list[Path]) -> list[str]:
    """The beginning of a command that runs in the arm's image."""
    if not settings["image"]:
        return []
    if "SLURM_JOB_ID" not in os.environ:
        raise UserError("options.image is for srun --container-image: use a Slurm profile (--profile slurm)")
    mounts = ",".join(f"{folder}:{folder}" for folder in folders)
    image = [f"--container-image={settings['image']}", f"--container-mounts={mounts}"]
    return ["srun", "--overlap", "--nodes=1", "--ntasks=1", *image, f"--container-workdir={folders[0]}"]


def _environment(ours: Mapping[str, str], spec: Mapping[str, Any], script: Path, attempt: str) -> dict[str, str]:
    """The script's environment: the user's, without the controller's programs, and with those of the arm first."""
    settings, controller = spec["trainer_args"], str(Path(sys.executable).parent)
    env = {name: value for name, value in ours.items() if not _OF_STEP.match(name)}
    if env.get("VIRTUAL_ENV") == sys.prefix:
        del env["VIRTUAL_ENV"]
    path = [one for one in env.get("PATH", os.defpath).split(os.pathsep) if one != controller]
    if settings["python"]:
        env.pop("PYTHONHOME", None)
        prefix = environment_of(settings["python"])
        path.insert(0, str(prefix / "bin"))
        for name, mark in (("CONDA_PREFIX", "conda-meta"), ("VIRTUAL_ENV", "pyvenv.cfg")):
            env.pop(name, None)
            if (prefix / mark).exists():
                env[name] = str(prefix)
    if nodes := env.get("SLURM_JOB_NUM_NODES"):
        tasks = settings["tasks_per_node"]
        env |= {"SLURM_NNODES": nodes, "SLURM_NODELIST": env["SLURM_JOB_NODELIST"], "SLURM_OVERLAP": "1"}
        env |= {"SLURM_NTASKS_PER_NODE": str(tasks), "SLURM_NTASKS": str(tasks * int(nodes))}
        env["SLURM_CPUS_PER_TASK"] = str(max(1, int(env.get("SLURM_CPUS_PER_TASK", "1")) // tasks))
        env["SLURM_SUBMIT_DIR"] = str(script.parent)
    names = {"RUN": spec["run_id"], "ARM": spec["arm"], "SEED": str(spec["seed"]), "ATTEMPT": attempt}
    own = {f"ROLLOUTBENCH_{name}": value for name, value in names.items()}
    given = settings["environment"]
    env |= {name: VARIABLE.sub(lambda one: env.get(one[0].strip("${}"), ""), text) for name, text in given.items()}
    return {**env, "PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", SCRIPT_PATH: str(script), **own}


def environment_of(python: str) -> Path:
    """The folder of an environment, given itself or its interpreter (often a link, which is not followed)."""
    path = Path(python).expanduser().absolute()
    return path if path.is_dir() else path.parent.parent


def packages_of(prefix: Path) -> dict[str, str]:
    """The versions of the packages that compute in an environment."""
    found = (_PACKAGES.fullmatch(path.name) for path in prefix.glob("lib/python3*/site-packages/*.dist-info"))
    return {match[1].replace("_", "-"): match[2] for match in found if match is not None}


def _run(
    command: list[str],
    cwd: Path,
    environment: Mapping[str, str],
    console: Path,
    stop: StopRequest,
    log_state: Callable[[], object],
) -> int:
    """The script's exit code; a stop request goes to all processes of its session, as Slurm's signals do."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the script leaves running is this process's
    prepare = die_with_this_process()

    def prepare_script() -> None:
        prepare()
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in jobs; scripts may use it among their processes

    with retry_io(lambda: open_private(console, "ab"), _FILES) as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare_script,
        )
    told, checked, state = False, time.monotonic(), None
    while (code := process.poll()) is None:
        if stop.requested and not told:
            told = True
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        if time.monotonic() - checked > _LOGS_EVERY_S:
            # The watchdog looks at the console alone; a log that grows is as good.
            checked, before, state = time.monotonic(), state, log_state()
            if state != before:
                os.utime(console)
        time.sleep(_POLL_S)
    return code


def _logs(settings: Mapping[str, Any], cwd: Path) -> Iterator[Path]:
    """The files that `read` names now; of a folder its event files, or else all."""
    for pattern in settings["read"]:
        base = cwd / Path(pattern).expanduser()
        for path in sorted(Path(base.anchor).glob(str(base.relative_to(base.anchor)))):
            events = [file for mark in _EVENTS for file in sorted(path.rglob(mark))] if path.is_dir() else [path]
            # wandb's latest-run is a link to another folder.
            yield from (one.resolve() for one in events or sorted(path.rglob("*")) if one.is_file())


def _keep_logs(settings: Mapping[str, Any], cwd: Path, before: Mapping[Path, os.stat_result], kept: Path) -> None:
    """Copy the log files that changed, so that the next run may write the same ones; of longer files the new part."""
    for path in dict.fromkeys(_logs(settings, cwd)):
        then, now = before.get(path), path.stat()
        if then is not None and (then.st_size, then.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
            continue
        target = kept.joinpath(*path.parts[1:])
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, open_private(target, "wb") as copy:
            source.seek(then.st_size if then is not None and now.st_size > then.st_size else 0)
            shutil.copyfileobj(source, copy)


def _read_log(run_folder: Path, attempt: int) -> tuple[dict[str, Any], str]:
    """What the log has (`first_step`, `last_step`, `steps`, `step_s`, ...), or nothing and why."""
    command = [*module_command(READER), str(run_folder), "--attempt", str(attempt)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1]), ""
    return {}, " ".join(done.stderr.split()).rpartition("error: ")[2]


def _without_steps(console: Path, problem: str) -> str:
    """Why a script that ended with exit code 0 has not trained, as far as can be seen."""
    text = "\n".join(last_lines(console, _TAIL_LINES)) if console.stat().st_size else ""
    if living := list(_living()):
        return (
            f"the script ended and left {len(living)} processes running ({living[0]}), which nobody waits for; they "
            "are ended now. Remove the & behind the training, or end the script with the line: wait"
        )
    if submitted := re.search(r"Submitted batch job \d+", text):
        return f"the script printed {submitted[0]!r}: it submits itself. Give the script that it submits"
    return (
        f"the script ended with exit code 0, and its log has no training steps: {problem}. If it has trained, nothing "
        "is lost: once its log can be read, the same command reads it and starts no training"
    )


def _living() -> Iterator[str]:
    """The command lines of what the script has left running: this process has adopted it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if parent == str(os.getpid()) and state != "Z":
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield " ".join(words)[:80].strip()


def _gpus() -> list[dict[str, Any]]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.rsplit(", ", 1) for line in listed.splitlines())
    return [{"name": name, "memory_gib": round(int(memory) / 1024, 1)} for name, memory in rows if memory.isdigit()]


def _write_done(attempt: Mapping[str, Any], found: Mapping[str, Any], began: float, finished: float) -> None:
    python = read_spec(attempt)["trainer_args"]["python"]
    done: DoneFile = {
        "run_id": attempt["run_id"],
        "fingerprint": attempt["fingerprint"],
        "attempt": attempt["attempt"],
        "first_step": found["first_step"],
        "last_step": found["last_step"],
        "steps": found["steps"],
        "started": began,
        "finished": finished,
        "inputs": attempt["inputs_sha256"],
        "versions": packages_of(environment_of(python)) if python else {},
        "hardware": {**machine(int(attempt["cpus"])), "gpus": _gpus()},
        "resolved": {"trainer": {}, "engine": {}, "environment": reported_environment(dict(os.environ))},
        "git": attempt.get("git"),
    }
    path = Path(attempt["attempt_dir"]) / "done.json"
    retry_io(lambda: write_json(path, done), _FILES)
    print(f"done: {found['steps']} steps of {found['trainer']} with {found['engine']}", flush=True)


if __name__ == "__main__":
    sys.exit(exit_code(run_script))
