"""Makes what the goldens freeze: runs the product's commands in an empty folder and reads the files that they write."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from unittest import mock

import yaml

from workflow.stacks.definition import load_stack, verify_id

from .. import patience
from ..analysis.wandb_server import KEY, ServedRun, WandbServer
from .canonical import Hide, of_json, of_page, of_parquet, of_text

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("data")
# Where the folders of data/recorded lie; @FOLDER@ in their files is the folder in which the experiment runs.
PLACES = {"experiment": "results/recorded", "stacks": ".stacks"}

"""A file, below the experiment's results -> its parts."""


def run(folder, program, *arguments, env=None):
    """A program of the controller's environment (`snakemake`, `rolloutbench`) to its end."""
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    return patience.run(command, 900, cwd=folder, env=_environment() | dict(env or {}))


def _environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "SNAKEMAKE"))}
    return kept | {"PIP_NO_INDEX": "1"}  # `check` asks the package index whether it answers


def rolloutbench(folder, *arguments):
    """The program in this process: its start takes ten times as long as most of its commands."""
    (program,) = entry_points(group="console_scripts", name="rolloutbench")
    main, out, err, code = program.load(), io.StringIO(), io.StringIO(), None
    with (
        contextlib.chdir(folder),
        mock.patch.object(sys, "argv", [program.name, *arguments]),
        mock.patch.dict(os.environ, _environment(), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(arguments, 0 if code is None else code, out.getvalue(), err.getvalue())


def snakemake(folder, config, *arguments, env=None):
    profile = ("--profile", str(ROOT / "profiles" / "local"), "--cores", "2")
    where = ("-s", str(ROOT / "workflow" / "Snakefile"), "--configfile", str(config))
    return run(folder, "snakemake", *profile, *where, *arguments, env=env)


def finished(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def hiding(folder):
    """The two folders of this machine, and this repository's commit."""
    folders = {str(folder.resolve()): "FOLDER", str(folder): "FOLDER", str(ROOT): "ROOT"}
    return Hide(folders, {r"made by rolloutbench .*": "made by rolloutbench"})


def results_of(folder, experiment):
    """Everything that an experiment's end leaves to be compared: plan, preflight, imports, steps, tables, page."""
    results, hide, found = folder / "results" / experiment, hiding(folder), {}
    for file in (
        results / "plan.json",
        results / "preflight.json",
        results / "verdict.json",
        *sorted(results.glob("runs/*/imported.json")),
    ):
        found[str(file.relative_to(results))] = of_json(file, hide)
    for file in (*sorted(results.glob("runs/*/steps.parquet")), *sorted(results.glob("tables/*.parquet"))):
        found[str(file.relative_to(results))] = of_parquet(file, hide)
    for file in sorted(results.glob("tables/*.csv")):
        found[str(file.relative_to(results))] = of_text(file, hide)
    found["report.md"] = of_text(results / "report.md", hide)
    found["report.html"] = of_page(results / "report.html", hide)
    figures = "\n".join(sorted(file.name for file in (results / "figures").iterdir()))
    return found | {"figures": {"names": figures}}


EXPERIMENTS = [ROOT / "config.yaml", *sorted((ROOT / "experiments").glob("*.yaml"))]


def plans(folder):
    """plan.json of every experiment; what they name and is not in the repository stands there empty."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    found = {}
    for experiment in EXPERIMENTS:
        config = yaml.safe_load(experiment.read_text(encoding="utf-8"))
        _local_sources(folder, config["workload"])
        file = folder / f"{experiment.stem}.json"
        finished(rolloutbench(folder, "write-plan", json.dumps(config), "--out", str(file)))
        found[experiment.name] = of_json(file, hiding(folder))
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
    return results_of(folder, "camino-2025-published")


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
    whole = results_of(folder, "formats")
    return {
        file: {part: text.replace(server.url, "SERVER") for part, text in one.items()} for file, one in whole.items()
    }


def preflights(folder):
    """What `check` finds in every experiment before anything is built, without what it finds of this site."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    found = {}
    for experiment in EXPERIMENTS:
        findings = json.loads(rolloutbench(folder, "check", str(experiment), "--json").stdout)["findings"]
        # What is found of a site needs no reason.
        found[experiment.name] = {"codes": "\n".join(sorted({one["code"] for one in findings if one["why"]}))}
    return found


def commands(folder):
    """Mistakes, and experiments of which nothing was started: how the commands end."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    good = (ROOT / "config.yaml").read_text(encoding="utf-8")
    (folder / "config.yaml").write_text(good, encoding="utf-8")
    (folder / "engine.yaml").write_text(good.replace("engine: vllm", "engine: vlm"), encoding="utf-8")
    (folder / "trainer.yaml").write_text(good.replace("trainer: trl", "trainer: tlr"), encoding="utf-8")
    (folder / "broken.yaml").write_text("arms: [1\n", encoding="utf-8")
    found = {}
    for line in COMMANDS:
        program, *arguments = line.split()
        if program == "snakemake":
            arguments = ["-s", str(ROOT / "workflow" / "Snakefile"), "--cores", "1", *arguments]
        done = run(folder, program, *arguments)
        last = [said.splitlines()[-1] if said.strip() else "" for said in (done.stdout, done.stderr)]
        hide = hiding(folder)
        found[line] = {"exit code": str(done.returncode), "last lines": hide("\n".join(last))}
    return found


COMMANDS = (
    "rolloutbench",
    "rolloutbench check nosuch.yaml",
    "rolloutbench check engine.yaml",
    "rolloutbench check trainer.yaml",
    "rolloutbench check broken.yaml",
    "rolloutbench check config.yaml",
    "rolloutbench status config.yaml",
    "rolloutbench status --experiment nosuch",
    "rolloutbench cancel config.yaml",
    "rolloutbench cancel --experiment nosuch",
    "rolloutbench report config.yaml",
    "rolloutbench plan config.yaml",
    "snakemake --configfile nosuch.yaml",
    "snakemake --configfile trainer.yaml",
)


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
    return results_of(folder, "recorded")


MADE = {
    "plans": plans,
    "preflights": preflights,
    "commands": commands,
    "article": article,
    "formats": formats,
    "recorded": recorded,
}
