"""Reads the `train` rule's command line, and checks that a run gets the nodes, CPUs and GPUs that it needs."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import inputs_sha256, read_json
from common.ownership import own_tree
from common.retry import retry_io
from trainers import Spread
from workflow.job.place import nvidia_gpus, visible_gpus
from workflow.slurm.request import read_request
from workflow.slurm.sbatch import WHERE, RequestError, gpus_of_gres
from workflow.slurm.site import Site

_SHOWN = 5
ON_ONE_MACHINE = 'set-resources: ["train:machine=100", "train:private_nodes=true"] in profiles/local/config.yaml'


def command_line(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folder", type=Path)
    parser.add_argument(
        "--spec", type=json.loads, required=True, help="the run's specification: the content of spec.json"
    )
    for name, what in (("--inputs", "inputs.json"), ("--stack", "the stack's verify.json")):
        parser.add_argument(name, type=Path, nargs="?", help=f"{what}; without a value for a run that has none")
    parser.add_argument("--log", type=Path, help="also write the error message to this file")
    parser.add_argument(
        "--resources", nargs="*", default=[], metavar="KEY=VALUE", help="those of rules/train.smk (docs/slurm.md)"
    )
    return parser


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """The request for a submission, from the command line; a `UserError` if the profile's settings are invalid."""
    run_id = args.spec["run_id"]
    given = dict(word.partition("=")[::2] for word in args.resources)
    cluster = given.get("submit_to", "local")
    if cluster not in ("local", "slurm"):
        raise UserError(
            f"{run_id}: training cannot be submitted through Snakemake's executor {cluster!r}; use "
            "--profile profiles/local (this machine) or --profile slurm (nothing was submitted)"
        )
    request = read_request(given, on_slurm=cluster == "slurm")
    if request.errors:
        raise UserError(f"{run_id}: {request.errors[0]}")
    if args.stack is None:
        inputs, prepared, python = "", dict[str, str](), Path(sys.executable)
    else:
        inputs, prepared, python = *_inputs(args), args.stack.resolve().parent / "env" / "bin" / "python"
    return {
        "spec": args.spec,
        "inputs": str(inputs),
        "inputs_sha256": prepared,
        "python": str(python),
        "cpus": 1 if request.cpus is None else request.cpus,
        "cluster": cluster,
        "limits": dict(request.limits),
        "site": dict(request.site),
    }


def _inputs(args: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """The path of inputs.json, and its hashes."""
    inputs = args.inputs.resolve()
    own_tree(inputs.parent)  # a model's folder may have code, and its hash is in inputs.json
    try:
        content = retry_io(lambda: read_json(inputs), "the inputs", for_others=False)
        prepared = inputs_sha256(content)
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{inputs} is damaged ({error!r}); delete it and start snakemake again") from None
    _require_a_step(args.spec, content["data"].get("rows"))
    return str(inputs), prepared


def _require_a_step(spec: Mapping[str, Any], rows: int | None) -> None:
    """`UserError` if the data has fewer prompts than a step: trainers drop an incomplete step, and would train none."""
    batch, group = spec["workload"].get("batch_size", 0), spec["workload"].get("num_generations", 1)
    if rows is not None and rows < batch // group:
        raise UserError(
            f"{spec['run_id']}: a step needs {batch // group} prompts (workload.batch_size {batch} completions / "
            f"num_generations {group}), but the data has {rows}; give more rows, or reduce batch_size (nothing was "
            "submitted)"
        )


def require_fit(request: Mapping[str, Any]) -> str:
    """Raise a `UserError` if a run would lack nodes, GPUs or CPUs; a note on idle GPUs, or an empty string."""
    spec, site = request["spec"], request["site"]
    nodes, gpus = int(spec["workload"].get("nodes", 1)), int(spec["workload"].get("gpus_per_node", 0))
    if nodes > 1 and Spread.from_spec(spec) is Spread.ALONE:
        raise RequestError(f"trainer {spec['trainer']} trains on one node (got workload.nodes: {nodes})", "set it to 1")
    if (shown := visible_gpus(spec["env"])) is not None and shown < gpus:
        raise RequestError(
            f"CUDA_VISIBLE_DEVICES in the experiment's env shows {shown} of the {gpus} GPUs that each node must have "
            "(workload.gpus_per_node)",
            "remove it: the job chooses its GPUs itself",
        )
    remark = ""
    if request["cluster"] == "slurm":
        remark = _require_slurm(nodes, gpus, site["nodes"], str(site["gres"]))
    else:
        _require_here(nodes, gpus, spec["env"])
    _require_cpus(spec, int(request["cpus"]), nodes, gpus)
    require_private(spec, site)
    return remark


def require_private(spec: Mapping[str, Any], site: Mapping[str, Any]) -> None:
    """Raise a `UserError` if whoever reaches a run's ports runs code, unless the site says that nobody does."""
    spread, what, other = Spread.from_spec(spec), "", ""
    if spread is Spread.SERVER and spec["workload"].get("gpus_per_node"):
        # On a CPU they go through files; the server itself asks for the attempt's secret (node/guard.py).
        what = "exchanges weights between vLLM's server and the trainer through a port that asks nobody for a password"
        other = "use vllm_mode: colocate"
    elif spread is Spread.RAY:
        # Ray before 2.52, TransferQueue's sockets, which decode pickles, and the engines' HTTP servers.
        what, other = "starts servers at the node's address that ask nobody for a password", "use another trainer"
    if what and not site.get("private_nodes"):
        raise RequestError(
            f"trainer {spec['trainer']} {what}: who else uses a job's nodes or their network could run programs as you",
            f"{other}; or, if no other user runs on a job's nodes and that network is the cluster's own, set "
            f"private_nodes: true {WHERE}",
        )


def _require_cpus(spec: Mapping[str, Any], cpus: int, nodes: int, gpus: int) -> None:
    if not cpus:  # as many as Slurm gives: only the job can tell
        return
    # A server on the trainer's node has its share of the CPUs, on a CPU as well.
    wanted = max(gpus, 1 + (nodes == 1 and "server" in spec))
    if Spread.from_spec(spec) in (Spread.TORCHRUN, Spread.SERVER) and cpus < wanted:
        each = f"a process for each GPU, {gpus} on each node" if gpus else "a process"
        if not gpus and "server" in spec:
            each += " and a server beside it"
        raise RequestError(
            f"{spec['trainer']} starts {each}, but the profile gives {cpus} CPUs",
            f"set cpus_per_task under set-resources: train: in the profile to at least {wanted}",
        )
    if cpus * nodes < (least := int(spec.get("least_cpus", 1))):
        raise RequestError(
            f"{spec['trainer']} reserves {least} CPUs with these settings and would wait forever: the profile "
            f"gives {cpus * nodes}" + f", {cpus} on each node" * (nodes > 1),
            "raise cpus_per_task under set-resources: train: (on one machine set-threads: train) in the profile",
        )


def _require_here(nodes: int, gpus: int, env: Mapping[str, str]) -> None:
    if nodes > 1:
        raise RequestError(
            f"the experiment needs {nodes} nodes (workload.nodes), but this is one machine",
            "use a profile for Slurm (--profile)",
        )
    found, source = local_gpus({**os.environ, **env}) if gpus else (0, "")
    if found < gpus:
        raise RequestError(
            f"the experiment needs {gpus} GPU{'s' * (gpus > 1)} (workload.gpus_per_node), but this machine has "
            f"{found or 'none'} to use ({source})",
            "use a profile for Slurm (--profile), or a machine with enough GPUs; --until stack only builds",
        )


def _refused(check: Callable[..., object], *of: object) -> list[RequestError]:
    try:
        check(*of)
    except RequestError as error:
        return [error]
    return []


def _with_arms(
    specs: Iterable[Mapping[str, Any]], errors_of: Callable[[Mapping[str, Any]], Iterable[RequestError]]
) -> dict[tuple[str, str], list[str]]:
    """What is wrong with runs, and the remedy -> the arms that it concerns."""
    found: dict[tuple[str, str], list[str]] = {}
    for spec in specs:
        for error in errors_of(spec):
            arms = found.setdefault((error.what, error.remedy), [])
            arms += [spec["arm"]] * (spec["arm"] not in arms)
    return found


def machine_lacks(specs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """What runs need that this machine does not have, and the remedy -> the arms."""
    visible = "CUDA_VISIBLE_DEVICES"

    @cache  # its GPUs are asked for once for each kind of run, not for each run
    def lacks(nodes: int, gpus: int, shown: str | None) -> list[RequestError]:
        return _refused(_require_here, nodes, gpus, {} if shown is None else {visible: shown})

    return _with_arms(
        specs,
        lambda spec: lacks(
            spec["workload"].get("nodes", 1), spec["workload"]["gpus_per_node"], spec["env"].get(visible)
        ),
    )


def _require_slurm(nodes: int, gpus: int, asked_nodes: int | None, gres: str) -> str:
    if asked_nodes not in (nodes, None):
        raise RequestError(
            f"the experiment needs {nodes} node{'s' * (nodes > 1)} per run (workload.nodes), but the profile requests "
            f"{asked_nodes} from Slurm",
            "remove `nodes` from set-resources: train: in the profile, or change one of the two",
        )
    asked = gpus_of_gres(gres)
    if asked < gpus:
        raise RequestError(
            f"the experiment needs {gpus} GPU{'s' * (gpus > 1)} per node (workload.gpus_per_node), but the profile "
            f"requests {asked or 'none'} from Slurm (gres: {gres!r}{'' if asked or not gres else ' names no gpu'})",
            "correct or remove gres under set-resources: train: in the profile"
            + f"; a type of GPU is written gpu:{gres}" * bool(re.fullmatch(r"\w+:\d+", gres) and not asked),
        )
    if gpus and asked > gpus:
        return f"requests {asked} GPUs per node from Slurm (gres: {gres!r}) and uses {gpus} (workload.gpus_per_node)"
    return ""


def request_errors(
    site: Site, specs: Iterable[Mapping[str, Any]], starts: bool = False
) -> dict[tuple[str, str], list[str]]:
    """What makes a profile's request impossible, and the remedy -> the arms that it concerns.

    Without Slurm the runs have what this machine has, which counts only if they start now.
    """

    def errors_of(spec: Mapping[str, Any]) -> list[RequestError]:
        request = site.request(spec["workload"])
        if (site.on_slurm or starts) and None not in (request.cpus, request.gpus):
            cluster = "slurm" if site.on_slurm else "local"
            asked = {"spec": spec, "cluster": cluster, "cpus": request.cpus, "site": request.site}
            return [*request.errors, *_refused(require_fit, asked)]
        return [*request.errors, *_refused(require_private, spec, request.site)]

    return _with_arms(specs, errors_of)


def exposed(site: Site, specs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """What lacks the site's word that nobody else reaches the runs' ports, and the remedy -> the arms."""
    found = _with_arms(specs, lambda spec: _refused(require_private, spec, site.request(spec["workload"]).site))
    here = "" if site.profile else f" (on one machine: {ON_ONE_MACHINE})"
    return {(what, f"{remedy}{here}"): arms for (what, remedy), arms in found.items()}


def require_requests(site: Site, specs: Sequence[Mapping[str, Any]], starts: bool = False) -> None:
    """`UserError` with all that makes the requests of these runs impossible; names the arms."""
    every = {spec["arm"] for spec in specs}
    lines = [
        f"{', '.join(arms)}: {RequestError(*error)}" if every - {*arms} else str(RequestError(*error))
        for error, arms in request_errors(site, specs, starts).items()
    ]
    if lines:
        raise UserError("\n".join(lines[:_SHOWN]))


def local_gpus(env: Mapping[str, str]) -> tuple[int, str]:
    """The number of NVIDIA GPUs that a program with this environment can use on this machine, and the source."""
    gpus, source = nvidia_gpus()
    found = len(gpus)
    visible = visible_gpus(env)
    if visible is None or visible >= found:
        return found, source
    return visible, f"CUDA_VISIBLE_DEVICES is {env['CUDA_VISIBLE_DEVICES']!r}"
