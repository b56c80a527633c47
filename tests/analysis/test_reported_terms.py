"""What finished runs report is compared beside their settings: machine, inputs, engine, stack, commit, settings."""

import csv
import json
import shutil
from pathlib import Path

import make_results
import pytest

from analysis.report.__main__ import main
from common.findings import Preflight

pytestmark = pytest.mark.usefixtures("undrawn")
A, B = "a" * 40, "b" * 40
FOUND = {"state": "as found", "python": "/opt/torch/bin/python3"}
COMMIT = "commit of rolloutbench"


def git(commit=A, dirty=False):
    return {"git": {"commit": commit, "dirty": dirty}}


def engine(**settings):
    return {"resolved": {"engine": settings}}


def beta(value):
    return {"resolved": {"trainer": {"beta": value}}}


VLLM = {"name": "vllm", "dtype": "bfloat16", "seed": 0, "enforce_eager": False, "kv_cache_size_tokens": 900_000}
VLLM |= {"cudagraph_mode": "FULL_AND_PIECEWISE", "max_num_seqs": 256}
VLLM |= {"max_num_batched_tokens": 4096, "enable_prefix_caching": True}
SGLANG = {"name": "sglang", "dtype": "bfloat16", "random_seed": 0, "disable_cuda_graph": True}
SGLANG |= {"max_total_num_tokens": 300_000, "max_running_requests": 8, "quantization": "fp8"}
SGLANG |= {"chunked_prefill_size": 512, "disable_radix_cache": True}
SEVERAL = "differs between runs of vllm ({}: "
SAME = engine(max_num_seqs=16) | {"hardware": {"driver": "560.2"}}
# What runs report by the beginning of their names; words of the verdict and its caveats, with - words that are not
# there; and rows of the table of terms: its verdict and the values of sglang and vllm.
CASES = {
    "the same": ({}, ["0 unequal of"], {COMMIT: ("equal", A[:12], A[:12])}),
    "clocks": ({"vllm": {"measurement": 2}}, ["Unequal terms (measurement: 1 in sglang; 2 in vllm"], {}),
    "processors": ({"vllm": {"hardware": {"cpus": 64}}}, ["Unequal terms (hardware.cpus: 2 in sglang; 64 in vllm"], {}),
    "data": ({"vllm": {"inputs": {"data_sha256": "0" * 64}}}, ["Unequal terms (training data: "], {}),
    "code": ({"vllm": git(B)}, [f"Unequal terms ({COMMIT}: {A[:12]} in sglang; {B[:12]} in vllm"], {}),
    "changes": (
        {"vllm": git(dirty=True)},
        [f"Unequal terms ({COMMIT}: {A[:12]} in sglang; {A[:12]} with uncommitted"],
        {},
    ),
    "changes of one commit may differ": (
        {"": git(dirty=True)},
        [f"settings cannot be verified ({COMMIT})", "-Unequal"],
        {},
    ),
    "what one arm does not report": (
        {"vllm": {"hardware": {"cpu": None}}},
        ["cannot be verified (hardware.cpu)", "-Unequal"],
        {},
    ),
    "engines": (
        {"vllm": engine(**VLLM), "sglang": engine(**SGLANG)},
        ["Unequal terms", "cuda-graphs"],
        {
            "CUDA graphs": ("different", "off", "on"),
            "KV cache in tokens": ("different", "300000", "900000"),
            "prefix cache": ("different", "off", "on"),
            "quantisation": ("unverifiable", "fp8 weights", "unknown"),
            "prefill tokens in a pass": ("different", "512", "4096"),
            "sequences at once": ("different", "8", "256"),
        },
    ),
    "driver of a run": (
        {"vllm": SAME, "vllm-s1": {"hardware": {"driver": "550.1"}}},
        [SEVERAL.format("hardware.driver")],
        {"hardware.driver": ("mixed",)},
    ),
    "clocks of a run": (
        {"vllm": SAME, "vllm-s1": {"measurement": 2}},
        [SEVERAL.format("measurement")],
        {"measurement": ("mixed",)},
    ),
    "stack of a run": (
        {"vllm": SAME, "vllm-s1": {"stack_origin": FOUND}},
        [SEVERAL.format("stack")],
        {"stack": ("mixed",)},
    ),
    "code of a run": ({"vllm": SAME, "vllm-s1": git(B)}, [SEVERAL.format(COMMIT)], {COMMIT: ("mixed",)}),
    "engine of a run": (
        {"vllm": SAME, "vllm-s1": engine(max_num_seqs=8)},
        [SEVERAL.format("sequences at once")],
        {"sequences at once": ("mixed",)},
    ),
    # done.json has the commit of the last attempt only.
    "code of an attempt": (
        {"vllm-s1/attempts/1/attempt": git(B)},
        [SEVERAL.format(COMMIT)],
        {COMMIT: ("mixed", A[:12], f"{A[:12]} (vllm-s0) | {B[:12]} and {A[:12]} (vllm-s1)")},
    ),
    "a setting that was composed as equal": (
        {"sglang": beta(0.04), "vllm": beta(0.0)},
        ["1 different of"],
        {"beta": ("different", "0.04", "0.0")},
    ),
    "a setting of a run": (
        {"": beta(0.04), "vllm-s1": beta(0.0)},
        ["(beta: 0.04 (vllm-s0) | 0.0 (vllm-s1))"],
        {"beta": ("mixed",)},
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "case"
    make_results.realistic(folder, {"sglang": ("sglang", 3.2), "vllm": ("vllm", 0.9)}, seeds=2, steps=4)
    composed = {"setting": "beta", "values": {"sglang": "0.04", "vllm": "0.04"}, "verdict": "equal"}
    preflight = Preflight((), (), (), "case").as_json() | {"ledger": [{**composed, "why": "", "source": ""}]}
    (folder / "preflight.json").write_text(json.dumps(preflight))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_what_runs_report_are_terms(made, tmp_path, name):
    changes, says, rows = CASES[name]
    folder = Path(shutil.copytree(made, tmp_path / "case"))
    for start, change in {"": git(), **changes}.items():
        place = f"{start}.json" if "/" in start else f"{start}*/done.json"
        for file in folder.glob(f"runs/{place}"):
            done = json.loads(file.read_text())
            known = {key: done.get(key, {}) | more for key, more in change.items() if isinstance(more, dict)}
            file.write_text(json.dumps(done | change | known))
    out = tmp_path / "out"
    assert main(["--plan", str(folder / "plan.json"), "--results", str(folder), "--out", str(out)]) == 0
    (arm,) = json.loads((out / "verdict.json").read_text())["arms"]
    said = "\n".join([arm["words"], arm["basis"], *(one["text"] for one in arm["caveats"])])
    for words in says:
        assert (words.removeprefix("-") in said) is not words.startswith("-"), said
    assert "0 unequal" not in said or ("Unequal terms" not in said and "between runs of" not in said)
    with (out / "tables" / "settings.csv").open(newline="") as table:
        terms = {
            row["setting"]: (row["verdict"], row["value/sglang"], row["value/vllm"]) for row in csv.DictReader(table)
        }
    assert {term: terms[term][: len(right)] for term, right in rows.items()} == rows
