"""Makes what the goldens keep: runs the product in an empty folder, and reads numbers from the files that it writes."""

import json
import os
import shutil
from importlib.metadata import entry_points
from pathlib import Path

import pandas as pd
import yaml

from workflow.stacks.definition import load_stack, verify_id

from ..analysis.wandb_server import KEY, ServedRun, WandbServer
from ..importing import PROGRAM, snakemake_in
from ..programs import ran

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("data")
# Where the folders of data/recorded lie; @FOLDER@ in their files is the folder in which the experiment runs.
PLACES = {"experiment": "results/recorded", "stacks": ".stacks"}


def _environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "SNAKEMAKE"))}
    return kept | {"PIP_NO_INDEX": "1"}  # `check` asks the package index whether it answers


def rolloutbench(folder, *arguments, env=None):
    """The program in this process."""
    (program,) = entry_points(group="console_scripts", name="rolloutbench")
    return ran(program.load(), arguments, folder, _environment() | dict(env or {}))


def snakemake(folder, config, *arguments, env=None):
    profile = ("--profile", str(ROOT / "profiles" / "local"), "--cores", "2")
    where = ("-s", str(ROOT / "workflow" / "Snakefile"), "--configfile", str(config))
    return snakemake_in(folder, [PROGRAM, *profile, *where, *arguments], _environment() | dict(env or {}))


def finished(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def numbers_of(folder, experiment):
    """The numbers of the report that a reader takes with him, a line each."""
    tables, lines = folder / "results" / experiment / "tables", []
    for table, (name, numbers) in NUMBERS.items():
        for row in pd.read_csv(tables / f"{table}.csv", keep_default_na=False).to_dict("records"):
            shown = [f"{number}={_short(row[number])}" for number in numbers]
            lines.append(" ".join(filter(None, [table, str(row["factors"]), row["arm"], f"{row[name]!r}", *shown])))
    return sorted(lines)


NUMBERS = {
    "phases": ("label", ("category", "steps", "mean_s", "own_mean_s")),
    "estimates": ("estimate", ("value", "low", "high", "verdict", "baseline_steps", "arm_steps")),
    "gate": ("quantity", ("baseline", "arm_value", "verdict")),
    "cost": ("gpus", ("gpu_hours", "step_gpu_s")),
}
"""Tables of the report: the column that names a row, and its numbers."""


def _short(value):
    """Six digits of a number: the rest belongs to the machine."""
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return str(value)


EXPERIMENTS = [ROOT / "config.yaml", *sorted((ROOT / "experiments").glob("*.yaml"))]


def fingerprints(folder):
    """The fingerprint of every run of every experiment; what they name and is not in the repository is empty."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    found = {}
    for experiment in EXPERIMENTS:
        config = yaml.safe_load(experiment.read_text(encoding="utf-8"))
        _local_sources(folder, config["workload"])
        file = folder / f"{experiment.stem}.json"
        finished(rolloutbench(folder, "write-plan", json.dumps(config), "--out", str(file)))
        found[experiment.name] = json.loads(file.read_text(encoding="utf-8"))["fingerprints"]
        found[experiment.name] = dict(sorted(found[experiment.name].items()))
    return found


def _local_sources(folder, workload):
    data, model = workload["data"], workload["model"]["source"]
    files = [data["source"], data.get("test_source")]
    if model.startswith("./"):
        files.append(f"{model}/config.json")
    for name in files:
        if name and name.endswith(("json", "jsonl", "parquet")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()


def article(folder):
    """The published comparison, as its experiment reads it."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    finished(snakemake(folder, ROOT / "experiments" / "camino-2025-published.yaml"))
    return numbers_of(folder, "camino-2025-published")


def formats(folder):
    """An arm for every format that is imported."""
    shutil.copytree(DATA / "formats", folder / "formats")
    shutil.copy(DATA / "formats.yaml", folder)
    rows = [json.loads(line)["data"] for line in (DATA / "formats" / "wandb-rows.jsonl").read_text().splitlines()]
    served = [{"_step": n, "_timestamp": 1.7e9 + 60 * n, **row} for n, row in enumerate(rows, 1)]
    config = {"trainer": {"value": {"nnodes": 1, "n_gpus_per_node": 8}}}
    about = {"host": "gpu1", "python": "CPython 3.11.7", "gpu_nvidia": [{"name": "NVIDIA H100 80GB HBM3"}] * 8}
    files = {"wandb-metadata.json": json.dumps(about).encode(), "requirements.txt": b"verl==0.4.1\nvllm==0.8.5\n"}
    with WandbServer({"me/p/a": ServedRun(served, config=config, files=files)}) as server:
        env = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY, "HOME": str(folder)}
        finished(snakemake(folder, folder / "formats.yaml", env=env))
    return numbers_of(folder, "formats")


def preflights(folder):
    """What `check` finds in every experiment before anything is built, without what it finds of this site."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    found = {}
    nothing = {"PATH": str(folder)}  # this machine's compilers would be tried for each experiment
    for experiment in EXPERIMENTS:
        checked = rolloutbench(folder, "check", str(experiment), "--json", env=nothing)
        findings = json.loads(checked.stdout)["findings"]
        # What is found of a site needs no reason.
        found[experiment.name] = sorted({one["code"] for one in findings if one["why"]})
    return found


def unpack_recorded(folder):
    """The recorded quickstart as it lay on a disk when its training had finished; its configuration's file."""
    for file in sorted((DATA / "recorded").rglob("*")):
        if file.is_file():
            place = file.relative_to(DATA / "recorded")
            copy = folder / PLACES[place.parts[0]] / Path(*place.parts[1:])
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.read_text(encoding="utf-8").replace("@FOLDER@", str(folder)), encoding="utf-8")
            age = {"verify.json": 400, "inputs.json": 300, "done.json": 100}.get(file.name, 200)
            then = copy.stat().st_mtime - age
            os.utime(copy, (then, then))
    for verdict in (folder / ".stacks").glob("*/*/verify.json"):
        # Its stack has passed today's checks, too: they may change, and no run is trained again for it.
        then, record = verdict.stat().st_mtime, json.loads(verdict.read_text(encoding="utf-8"))
        checks = verify_id(load_stack(verdict.parents[1].name))
        for file in (verdict, verdict.with_name(f"verify-{checks}.json")):
            file.write_text(json.dumps(record | {"verify_id": checks}))
            os.utime(file, (then, then))
        python = verdict.with_name("env") / "bin" / "python"  # nothing may run it
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\necho a stack was run >&2; exit 1\n")
        python.chmod(0o755)
    return Path(shutil.copy(DATA / "recorded.yaml", folder))


def recorded(folder):
    """The quickstart, from what its training left: collected and reported, and nothing trained."""
    finished(snakemake(folder, unpack_recorded(folder)))
    return numbers_of(folder, "recorded")


MADE = {
    "fingerprints": fingerprints,
    "preflights": preflights,
    "article": article,
    "formats": formats,
    "recorded": recorded,
}
