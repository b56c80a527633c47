"""Experiments for the preflight's tests, without stacks, models or data on this machine."""

import copy

import yaml

from common.dotted import flatten, nested_settings
from common.files import ROOT
from tests.trainers.verl.composed_defaults import composed
from trainers.cases import StackPins
from trainers.protocol import StackFacts
from workflow.config.plan import plan_runs
from workflow.config.reading import parse_config
from workflow.preflight import preflight
from workflow.preflight.cases import settings_requests

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"

PACKAGES = {
    "verl04-vllm": {"torch": "2.6.0", "vllm": "0.8.5", "transformers": "4.51.1"},
    "verl04-sglang": {"torch": "2.6.0", "sglang": "0.4.6.post5", "transformers": "4.51.1"},
    "verl09-vllm": {"torch": "2.11.0", "vllm": "0.24.0", "flashinfer-python": "0.6.12", "transformers": "5.9.0"},
    "verl09-sglang": {
        **{"torch": "2.11.0", "sglang": "0.5.12", "sglang-kernel": "0.4.2.post2", "transformers": "5.9.0"},
        **{"flashinfer-python": "0.6.12"},
    },
    "trl-gpu-vllm": {"torch": "2.11.0", "vllm": "0.24.0"},
    "trl-gpu-transformers": {"torch": "2.11.0"},
    "trl-gpu-sglang": {"torch": "2.11.0", "sglang": "0.5.23"},
    "trl-cpu-sglang": {"torch": "2.11.0", "sglang": "0.5.23"},
    "trl-cpu-vllm": {"torch": "2.11.0", "vllm": "0.31.0"},
    "swift-gpu-vllm": {"torch": "2.11.0", "vllm": "0.24.0"},
}
_VERSIONS = {"verl04": "0.4.1", "verl09": "0.9.1", "trl": "1.16.0", "swift": "4.6.0"}


def _version(stack):
    return next(version for name, version in _VERSIONS.items() if stack.startswith(name))


def _facts(stack):
    trainer = stack.partition("-")[0].rstrip("0123456789")
    return StackFacts(trainer, stack.rpartition("-")[2], _accelerator(stack), _version(stack), "0" * 12)


def _told(stack):
    return StackPins(_accelerator(stack), _version(stack), PACKAGES[stack])


def _accelerator(stack):
    return "cpu" if "-cpu-" in stack else "cuda"


def _published():
    """The article's experiment, its options by dotted key, its model by the hub's name."""
    raw = yaml.safe_load((ROOT / "experiments" / "camino-2025.yaml").read_text(encoding="utf-8"))
    options = raw["shared"]["verl"]["options"]
    raw["shared"]["verl"]["options"] = flatten(nested_settings(options), keep_plus=True)
    raw["workload"] |= {"model": {"source": "microsoft/Phi-4-reasoning-plus", "revision": "0" * 40}, "steps": 12}
    raw["workload"] |= {"data": {"source": "data.parquet"}, "test_steps": 0}
    return raw


ARTICLE = _published()
# verl 0.9.1, with all that it lets one set: the engines meet on equal terms.
EQUAL = {
    **ARTICLE,
    "experiment": "equal",
    "arms": {
        "vllm": {"trainer": "verl", "engine": "vllm", "stack": "verl09-vllm"},
        "sglang": {"trainer": "verl", "engine": "sglang", "stack": "verl09-sglang"},
    },
    "shared": {
        "verl": {
            "options": {
                f"{ROLLOUT}.tensor_model_parallel_size": 2,
                f"{ROLLOUT}.gpu_memory_utilization": 0.7,
                f"{ROLLOUT}.max_num_batched_tokens": 8192,
                f"+{ROLLOUT}.engine_kwargs.vllm.attention_backend": "FLASHINFER",
                f"+{ROLLOUT}.engine_kwargs.sglang.attention_backend": "flashinfer",
                f"+{ROLLOUT}.engine_kwargs.sglang.random_seed": 42,
                f"+{ROLLOUT}.engine_kwargs.sglang.chunked_prefill_size": 8192,
                f"{ACTOR}.strategy": "fsdp2",
                f"{ACTOR}.use_dynamic_bsz": True,
                f"{ACTOR}.ppo_max_token_len_per_gpu": 33000,
                f"{ACTOR}.fsdp_config": {"param_offload": True, "optimizer_offload": True},
            }
        }
    },
    "workload": ARTICLE["workload"] | {"num_generations": 4, "mini_batch_size": None, "lr_warmup_steps": 0},
    "seeds": [0, 1, 2],
}

# The article's runs, imported with what a training would be told.
IMPORTED = ARTICLE | {"arms": {name: arm | {"import": f"{name}.log"} for name, arm in ARTICLE["arms"].items()}}
BY_NAME = {"article": ARTICLE, "equal": EQUAL, "imported": IMPORTED}


def planned(raw, *, options=None, env=None, arms=None, without=(), **workload):
    """An experiment with further shared options and variables, other arms, fewer arms, or other words of workload."""
    raw = copy.deepcopy(raw)
    if arms is not None:
        raw["arms"], raw["baseline"] = arms, next(iter(arms))
    raw["arms"] = {name: arm for name, arm in raw["arms"].items() if name not in without}
    raw["baseline"] = next(iter(raw["arms"]))
    shared = raw.setdefault("shared", {}).setdefault("verl", {})
    for key, value in (options or {}).items():
        if value is None:
            shared["options"].pop(key)
        else:
            shared.setdefault("options", {})[key] = value
    shared["env"] = {**shared.get("env", {}), **(env or {})}
    raw["workload"] |= workload
    trainers = {arm["trainer"] for arm in raw["arms"].values()}
    raw["shared"] = {name: what for name, what in raw["shared"].items() if name in trainers}
    return plan_runs(parse_config(raw), _facts)


def as_composed(plan):
    """What the stacks of a plan's verl arms would compose, by settings_id."""
    runs = settings_requests(plan).items()
    return {one: composed(run.spec["trainer_args"]) for one, run in runs if run.spec["trainer"] == "verl"}


def looked_at(plan, place=None, composed=None):
    return preflight(plan, place, as_composed(plan) if composed is None else composed, _told)


def found(raw, place=None, **changes):
    """The findings by code."""
    return {finding.code: finding for finding in looked_at(planned(raw, **changes), place).findings}
