"""verl 0.9.1's loops with each engine and split of GPUs: refused here where verl's own code refuses them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.patience import run
from trainers.verl.packaged import settings_of
from trainers.verl.releases.release import FlatConfig
from trainers.verl.releases.v0_9_1_loops import pools

from .environments import build
from .test_settings import ROOT, R, overrides

pytestmark = pytest.mark.full("verl composes dozens of cases")

MODE, SEPARATE = "trainer.v1.trainer_mode", "trainer.v1.separate_async"
LOOPS = {
    "sync": [],
    "colocate_async": [f"{MODE}=colocate_async"],
    "separate_async": [f"{MODE}=separate_async"],
    "separate_async, set up": [
        f"{MODE}=separate_async",
        f"{R}.checkpoint_engine.backend=nccl",
        f"{SEPARATE}.parameter_sync_step=1",
    ],
    "legacy": ["trainer.use_v1=false"],
}
# Nodes x GPUs of the trainer, of the engines, and an engine's GPUs.
SPLITS = ((1, 8, 0, 8, 2), (1, 8, 1, 4, 2), (2, 4, 1, 4, 4), (2, 4, 1, 3, 4), (1, 8, 2, 8, 8))


def with_gpus(engine: str, split: tuple[int, ...], *more: str) -> list[str]:
    nodes, per_node, engine_nodes, engine_gpus, parallel = split
    return [
        *overrides("0.9.1", engine=engine, nodes=nodes, gpus_per_node=per_node, micro_batch_size=1),
        f"{R}.tensor_model_parallel_size={parallel}",
        f"{R}.nnodes={engine_nodes}",
        f"{R}.n_gpus_per_node={engine_gpus}",
        *more,
    ]


MATRIX = {
    f"{loop}, {engine}, {split}": with_gpus(engine, split, *more)
    for (loop, more), engine, split in itertools.product(LOOPS.items(), ("vllm", "sglang"), SPLITS)
}
# What breaks one assertion: its words in ours, and its file below verl/.
BROKEN: dict[str, tuple[list[str], str]] = {
    "groups": (
        ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=null"],
        "trainer/ppo/v1/trainer_base.py:196",
    ),
    "pieces": (
        ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_inflight_gen_batches=0"],
        "trainer/ppo/v1/replay_buffer.py:196",
    ),
    "threshold": (["trainer.v1.sampler.max_off_policy_threshold=0"], "trainer/ppo/v1/replay_buffer.py:166"),
    "parts": (["+trainer.v1.sync.parameter_sync_step=3"], "trainer/ppo/v1/trainer_base.py:535"),
    "legacy": (["trainer.use_v1=false", "actor_rollout_ref.hybrid_engine=false"], "trainer/ppo/ray_trainer.py:334"),
}
# Assertions that only an engine or a GPU reaches.
UNREACHED: dict[str, tuple[list[str], str]] = {
    "quantization": ([f"{R}.quantization=awq"], "workers/rollout/vllm_rollout/vllm_async_server.py:1242"),
    "quantization of SGLang": (
        [f"{R}.name=sglang", f"{R}.quantization=torchao"],
        "workers/rollout/sglang_rollout/async_sglang_server.py:312",
    ),
    "agent": ([f"{R}.agent.default_agent_loop=tool"], "experimental/agent_loop/agent_loop.py:678"),
    "transport": ([f"{R}.checkpoint_engine.backend=ncll"], "checkpoint_engine/base.py:98"),
    "one step off": (["+rollout.nnodes=1"], "experimental/one_step_off_policy/main_ppo.py"),
    "fully async": (["+async_training.staleness_threshold=0.5"], "experimental/one_step_off_policy/main_ppo.py"),
}
POOLS = {
    "reward model": [f"reward.reward_model.{key}" for key in ("enable_resource_pool=true", "nnodes=1")],
    "teachers": ["distillation.enabled=true", "distillation.nnodes=2"],
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("loops")
    base = with_gpus("vllm", SPLITS[0])
    single = {**BROKEN, **UNREACHED}
    cases = MATRIX | {name: [*base, *more] for name, (more, _) in single.items()}
    cases |= {name: [*base, *more] for name, more in POOLS.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [
        str(build("0.9.1")),
        "tests/trainers/verl/loops.py",
        str(folder / "cases.json"),
        str(folder / "out.json"),
    ]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "HOME": str(folder)}
    done = run(command, 900, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


@pytest.mark.parametrize("name", MATRIX)
def test_verl_and_the_preflight_agree_on_each_loop(name: str, answers: dict[str, Any]) -> None:
    answer, settings = answers[name], settings_of({"overrides": MATRIX[name], "version": "0.9.1"}, None)
    config = FlatConfig(settings.values)
    beside = pools(config)
    has = config.gpus
    if answer["gpus"] is not None:
        assert answer["gpus"] == has + sum(beside.values())
    refused = answer["verl"] is not None or answer["gpus"] > has
    assert bool(answer["ours"]) == refused, answer
    assert ("separate_async" in name) <= refused


@pytest.mark.parametrize("name", [*BROKEN, *UNREACHED])
def test_an_assertion_is_a_refusal_with_verls_line(name: str, answers: dict[str, Any]) -> None:
    source = {**BROKEN, **UNREACHED}[name][1]
    assert (answers[name]["verl"] is not None) == (name in BROKEN), answers[name]
    ((code, _, place),) = answers[name]["ours"]
    assert code == "setting-asserted" and place.startswith(f"verl 0.9.1, {source}")


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_beside_the_trainer_is_refused_with_all_gpus(name: str, answers: dict[str, Any]) -> None:
    ((code, text, _),) = answers[name]["ours"]
    assert code == "setting-gpus-beside" and f"(got {answers[name]['gpus']} in all)" in text and name in text
