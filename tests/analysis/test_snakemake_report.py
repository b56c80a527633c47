"""Snakemake's own report holds the page, the tables and the figures, with categories and labels."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_the_tables_and_the_figures_are_in_snakemakes_report(tmp_path):
    arms = {}
    for arm, step_s in (("vllm", 10), ("sglang", 5)):
        lines = [
            f"{step},timing_s/{name},{s}" for step in (1, 2) for name, s in (("step", step_s), ("gen", step_s - 2))
        ]
        (tmp_path / f"{arm}.csv").write_text("step,phase,seconds\n" + "\n".join(lines) + "\n")
        arms[arm] = {
            "trainer": "verl",
            "engine": arm,
            "import": {"version": "0.4.1", "runs": [{"source": f"{arm}.csv"}]},
        }
    config = {"experiment": "small", "baseline": "vllm", "arms": arms, "warmup_steps": 0}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    command = [
        *(str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "workflow" / "Snakefile")),
        *("--directory", str(tmp_path), "--profile", str(ROOT / "profiles" / "local")),
        *("--configfile", str(tmp_path / "small.yaml")),
    ]
    for more in ([], ["--report", "report.zip"]):
        done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    results = tmp_path / "results" / "small"
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        held = {Path(name).name for name in archive.namelist()}
        index = archive.read("report/report.html").decode()
    assert "report.html" in held
    assert {p.name for p in (results / "tables").glob("*.csv")} <= held
    assert {p.name for p in (results / "figures").glob("*.svg")} <= held and len(
        list(results.glob("figures/*.svg"))
    ) > 2
    entries = {entry["name"]: (entry["labels"], entry["caption"]) for entry in told(index, "results").values()}
    labels, caption = entries["phases.svg"]
    assert labels == {"experiment": "small", "figure": "phases"} and "as on the page" in caption
    labels, caption = entries["comparison.csv"]
    assert labels == {"experiment": "small", "table": "comparison"} and "every digit" in caption
    labels, caption = entries["report.html"]
    assert labels["experiment"] == "small" and "at equal work" in caption
    assert {"Comparison", "Tables", "Figures"} <= set(told(index, "categories"))


def told(index, name):
    """A table of Snakemake's page, as it hands it to its script."""
    return json.JSONDecoder().raw_decode(index, re.search(rf"var {name} = (?=\{{)", index).end())[0]
