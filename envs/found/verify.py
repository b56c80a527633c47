"""Checks an environment that was recorded as found: what it has against the record, and whether its parts work.

Its probes are those without which its trainer or engine cannot run, whatever their releases.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import recorded
from _gpu import all_reduce
from _probes import COMMON, SGLANG, SWIFT, TRL, VLLM, VLLM_CPU, driver, imports
from _verify import CUDA, Probe, main


def torch_cuda() -> Any:
    """CUDA's release that torch is built with, such as "12.4"; None for a CPU build."""
    import torch

    return torch.version.cuda


AS_RECORDED = Probe("torch is built as recorded", "torch", CUDA, torch_cuda)
TRAINERS = {"trl": TRL, "verl": [imports("verl", "verl.trainer.main_ppo")], "swift": SWIFT}
ON_GPUS = [
    Probe("torch reaches the GPUs", "torch", "works", driver(), gpu=True),
    Probe("all visible GPUs sum up", "torch", "works", all_reduce(), gpu=True),
]
# By engine and whether it is for GPUs. As many environments have no FlashInfer, SGLang's own kernels are not tried.
ENGINES = {
    ("vllm", False): [probe for probe in VLLM_CPU if probe.package != "torch"],
    ("vllm", True): [imports("vllm", "vllm.sampling_params"), *VLLM],
    ("sglang", True): [probe for probe in SGLANG if probe.package == "sglang"],
}


@cache
def _sources() -> dict[str, str]:
    return recorded.sources()


def _source_probes(listed: dict[str, str]) -> list[Probe]:
    """Whether packages come from where they came from; without git an editable one's commit is not known."""
    known = {
        name: source for name, source in listed.items() if shutil.which("git") or not source.startswith("editable")
    }
    return [
        Probe(f"the source of {name}", name, source, partial(lambda one: _sources().get(one, "an index"), name))
        for name, source in known.items()
    ]


def probes_of(origin: dict[str, Any], on_gpus: bool) -> list[Probe]:
    """The probes of the recorded trainer and engine."""
    found = _source_probes(origin.get("sources", {})) + [AS_RECORDED, *COMMON] + (ON_GPUS if on_gpus else [])
    return found + TRAINERS.get(origin["trainer"], []) + ENGINES.get((origin["engine"], on_gpus), [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    for name in ("--built", "--probe"):
        parser.add_argument(name, type=Path)
    given = parser.parse_known_args()[0]
    if given.probe:  # found by its name
        sys.exit(main(ON_GPUS + ENGINES["vllm", True] + ENGINES["sglang", True]))
    facts = json.loads(given.built.read_text(encoding="utf-8"))
    sys.exit(main(probes_of(facts["origin"], facts["cuda"] is not None)))
