"""Is this environment what its lock says, and does it work? Shared by every stack's verify.py.

Runs in the stack's own Python: the standard library and, inside the probes, the stack's packages.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Probe:
    """A small piece of real work: `run` imports what it needs and returns what is compared with `expected`."""

    name: str
    package: str
    """The pin that answers for it: a failure names this package's line of the lock."""
    expected: Any
    run: Callable[[], Any]


def main(probes: list[Probe], arguments: list[str] | None = None) -> int:
    """Writes verify.json to --out; 0 when every check passed, 1 otherwise."""
    parser = argparse.ArgumentParser(description="Checks a built stack against its lock.")
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stack", required=True)
    parser.add_argument("--lock-id", required=True)
    parser.add_argument("--python-version", required=True, help="feature release, as in 3.11")
    parser.add_argument("--verify-id", required=True, help="what the builder knows this program's text by")
    given = parser.parse_args(arguments)

    pins = pinned(given.lock)
    packages = installed()
    name = given.lock.name
    python = ".".join(platform.python_version_tuple()[:2])
    checks = [_check("python", given.python_version, python, "stack.yaml")]
    for package, (version, line) in pins.items():
        checks.append(_check(package, version, packages.get(package, "not installed"), f"{name}:{line}"))
    for package in sorted(set(packages) - set(pins)):
        checks.append(_check(package, "not installed", packages[package], f"{name}: no line"))
    for probe in probes:
        # The last line before a crash of the interpreter itself (SIGILL on an old CPU) names what ran.
        print(f"checking {probe.name}", file=sys.stderr, flush=True)
        source = f"{name}:{pins[probe.package][1]}" if probe.package in pins else f"{name}: no line"
        checks.append(_check(probe.name, probe.expected, _outcome(probe), source))

    verdict = {
        "stack": given.stack,
        "lock_id": given.lock_id,
        "verify_id": given.verify_id,
        "ok": all(check["ok"] for check in checks),
        "python": platform.python_version(),
        "platform": sysconfig.get_platform(),
        "checks": checks,
        "packages": packages,
    }
    temporary = given.out.with_name(given.out.name + ".tmp")
    temporary.write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    temporary.replace(given.out)
    return 0 if verdict["ok"] else 1


def pinned(lock: Path) -> dict[str, tuple[str, int]]:
    """Version and line (from 1) of every pin of a lock, by normalized name."""
    found = {}
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), start=1):
        if pin := re.match(r"([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", line):
            found[_normalized(pin[1])] = (pin[2], number)
    return found


def installed() -> dict[str, str]:
    """Version of every installed package, by normalized name, sorted."""
    found = {}
    for distribution in importlib.metadata.distributions():
        # A package whose metadata was damaged has no name.
        name = distribution.metadata["Name"] or f"without a name: {getattr(distribution, '_path', '?')}"
        found[_normalized(name)] = distribution.version or "no version"
    return dict(sorted(found.items()))


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _check(name: str, expected: Any, got: Any, source: str) -> dict[str, Any]:
    return {"name": name, "expected": expected, "got": got, "ok": expected == got, "source": source}


def _outcome(probe: Probe) -> Any:
    try:
        return probe.run()
    except BaseException as error:  # a library may raise SystemExit, or a Rust panic that is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"


# Probes of what every TRL stack holds.


def _torch_product() -> Any:
    import torch

    left = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return (left @ left).tolist()


def _torch_device() -> Any:
    import torch

    return "cuda" if torch.version.cuda else "cpu"


def _transformers_generates() -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    prompt = torch.tensor([[1, 2, 3]])
    generated = (
        Qwen2ForCausalLM(config)
        .eval()
        .generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    )
    return list(generated.shape)


def _trl_trainer() -> Any:
    from trl import GRPOConfig, GRPOTrainer

    # The lazy import of trl gives a stand-in where a dependency is missing: only use shows it.
    config = GRPOConfig(output_dir=os.devnull, use_cpu=True, report_to="none", num_generations=4)
    return [GRPOTrainer.__name__, config.num_generations]


def _wandb_module() -> Any:
    import wandb

    # Offline, without a run: the settings object and the core program that writes the files must be there.
    core = Path(wandb.__file__).parent / "bin" / "wandb-core"
    return [wandb.Settings(mode="offline").mode, os.access(core, os.X_OK)]


def _math_verdicts() -> Any:
    from math_verify import parse, verify

    return [verify(parse("$\\frac{1}{2}$"), parse("$0.5$")), verify(parse("$\\frac{1}{2}$"), parse("$0.6$"))]


def _datasets_parquet() -> Any:
    import tempfile

    import datasets

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rows.parquet")
        datasets.Dataset.from_dict({"prompt": ["a", "b"]}).to_parquet(path)
        return datasets.Dataset.from_parquet(path, cache_dir=folder)["prompt"][:]


TRL_CPU = [
    Probe("torch multiplies matrices", "torch", [[7.0, 10.0], [15.0, 22.0]], _torch_product),
    Probe("torch is a CPU build", "torch", "cpu", _torch_device),
    Probe("transformers generates", "transformers", [1, 7], _transformers_generates),
    Probe("datasets writes and reads parquet", "datasets", ["a", "b"], _datasets_parquet),
    Probe("trl has its GRPO trainer", "trl", ["GRPOTrainer", 4], _trl_trainer),
    Probe("wandb works offline", "wandb", ["offline", True], _wandb_module),
    Probe("math_verify compares answers", "math-verify", [True, False], _math_verdicts),
]
