"""Reads the launcher's command line, as the `train` rule writes it, and what a submission makes of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT, read_json
from common.patience import patiently
from workflow.cluster.history import inputs_sha256

_SITE_TEXTS = ("partition", "account", "qos", "gres", "constraint", "reservation", "nodelist", "exclude", "setup")
_SITE = (*_SITE_TEXTS, "nodes", "mem_mb", "runtime")
_LIMITS = ("restarts", "stop_grace_s", "hang_factor", "hang_min_s", "first_step_s")


def command_line(description: str | None) -> argparse.ArgumentParser:
    """The launcher's command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--spec", type=json.loads, required=True, help="what is to be run: the content of spec.json")
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--stack", type=Path, required=True, help="the stack's verify.json")
    parser.add_argument("--cpus", type=int, required=True, help="CPUs of each task, and threads of the trainer")
    parser.add_argument("--log", type=Path, help="also write what is said here")
    parser.add_argument("--cluster", default="local", help="where submitit submits to: local or slurm")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--restarts", type=int, default=5, help="attempts without a new step before it is given up")
    limits.add_argument("--stop-grace-s", type=int, default=120, help="seconds for a last step and its checkpoint")
    limits.add_argument("--hang-factor", type=float, default=10.0, help="times the median step; 0: no watchdog")
    limits.add_argument("--hang-min-s", type=float, default=600.0)
    limits.add_argument("--first-step-s", type=float, default=7200.0, help="patience until an attempt's first step")
    site = parser.add_argument_group("site (Slurm)")
    for name in _SITE_TEXTS:
        site.add_argument(f"--{name}", default="")
    site.add_argument("--nodes", type=int, default=1)
    site.add_argument("--mem-mb", type=int, default=0, help="per node; 0: what the partition gives")
    site.add_argument("--runtime", type=int, default=0, help="minutes")
    return parser


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line orders, as a submission takes it; a `UserError` where a profile's words make no sense."""
    run_id = args.spec["run_id"]
    if args.cluster not in ("local", "slurm"):
        raise UserError(
            f"{run_id}: training cannot be submitted through Snakemake's executor {args.cluster!r}; use "
            "--profile profiles/local (this machine) or --profile slurm (nothing was submitted)"
        )
    site = {name: getattr(args, name) for name in _SITE}
    if args.cluster == "slurm":
        if not site["partition"]:
            raise UserError(
                f"{run_id}: no partition to train in; set slurm_partition under set-resources: train: in the profile "
                "(nothing was submitted, and nothing is trained on this machine)"
            )
        if site["runtime"] * 60 < 2 * args.stop_grace_s:
            raise UserError(
                f"{run_id}: runtime must be at least twice stop_grace_s, or a job would be stopped as soon as it began "
                f"(got {site['runtime']} min and {args.stop_grace_s} s); change them in the profile"
            )
        if site["setup"] and not (ROOT / site["setup"]).is_file():
            raise UserError(f"{run_id}: no such setup script: {ROOT / site['setup']}; correct setup in the profile")
        if site["setup"]:
            site["setup"] = str(ROOT / site["setup"])
    inputs = args.inputs.resolve()
    return {
        "spec": args.spec,
        "inputs": str(inputs),
        "inputs_sha256": _prepared(inputs),
        "python": str(args.stack.resolve().parent / "env" / "bin" / "python"),
        "cpus": args.cpus,
        "cluster": args.cluster,
        "limits": {name: getattr(args, name) for name in _LIMITS},
        "site": site,
    }


def _prepared(inputs: Path) -> dict[str, str]:
    try:
        return inputs_sha256(patiently(lambda: read_json(inputs), "the inputs", for_others=False))
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{inputs} is damaged ({error!r}); delete it and start snakemake again") from None
