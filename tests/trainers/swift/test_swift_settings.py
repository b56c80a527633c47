"""A workload's words as ms-swift's arguments, and what is refused while the run is planned."""

import dataclasses
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from common.errors import UserError
from node.seeds import engine_seed
from trainers.protocol import StackFacts
from trainers.registry import mode_of, tree_for
from trainers.swift.driver import arguments, colocate, timers
from trainers.swift.driver.train import sampled_ids
from trainers.swift.trainer import SCHEDULERS, SWIFT
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config
from workflow.preflight import preflight

from ...attempts import ROOT, run_python

RAW = yaml.safe_load((ROOT / "tests" / "trainers" / "trainers-cpu.yaml").read_text(encoding="utf-8"))


CASES = yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text(encoding="utf-8"))
ASYNC = {"use_vllm": True, "vllm_mode": "server", "async_generate": True}


def args_of(engine="transformers", options=None, words=None, **_):
    """The arguments of an arm alone: TRL refuses some of the words, too."""
    accelerator = "cuda" if (words or {}).get("gpus_per_node") else "cpu"
    facts = StackFacts("swift", engine, accelerator, "4.6.0", "0" * 12)
    arm = {"trainer": "swift", "engine": engine, "stack": "x", "options": options or {}}
    raw = RAW | {"workload": RAW["workload"] | (words or {}), "arms": {"swift": arm}, "baseline": "swift"}
    return dict(plan_runs(parse_config(raw), lambda stack: facts).runs["swift-s0"].spec["trainer_args"])


@pytest.mark.parametrize("name", CASES)
def test_each_case_becomes_what_was_meant_or_is_refused_in_the_plan(name):
    case = CASES[name]
    if "says" in case:
        with pytest.raises(UserError, match=re.escape(case["says"])):
            args_of(**case)
        return
    args = args_of(**case)
    has = case.get("has", {})
    assert {key: args.get(key, "missing") for key in has} == has
    if case.get("engine_has"):
        assert {key: args[key] for key in args if "vllm" in key or key == "sleep_level"} == case["engine_has"]


def test_vllm_in_the_trainer_has_the_runs_seed_and_dtype_and_its_own_all_reduce(monkeypatch):
    class Engine:
        def _prepare_engine_kwargs(self):  # as ms-swift 4.6.0 leaves it in its second process
            self.engine_args = SimpleNamespace(seed=1, dtype="float32", disable_custom_all_reduce=True)

    monkeypatch.setitem(sys.modules, "swift", ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.infer_engine.grpo_vllm_engine", SimpleNamespace(GRPOVllmEngine=Engine))
    monkeypatch.setattr(colocate, "is_cpu_platform", lambda: False)
    arguments = SimpleNamespace(use_vllm=True, vllm_mode="colocate", bf16=True, fp16=False)
    with colocate.corrected(arguments, 7, 20, 2):
        engine = Engine()
        engine._prepare_engine_kwargs()
    assert vars(engine.engine_args) == {
        "seed": engine_seed(7, 20, 1),
        "dtype": "bfloat16",
        "disable_custom_all_reduce": False,
    }


def test_a_server_ends_with_an_engines_process_that_is_killed():
    """swift's own would live on, and who waits for that engine with it."""
    program = """
import os, threading
from multiprocessing import Event, Process
from trainers.swift.driver import serve

seen = Event()

class Over(threading.Event):
    def wait(self, timeout):
        seen.set()
        return super().wait(timeout)

def killed():
    seen.wait()
    os.abort()

Process(target=threading.Event().wait, daemon=True).start()
Process(target=killed).start()
serve.exit_with_failed_worker(Over())
"""
    ended = run_python(Path(sys.executable), "-c", program)
    assert ended.returncode == 1 and ended.stderr.startswith("error: ") and "SIGABRT" in ended.stderr


def test_beside_a_generation_a_step_has_no_phases_but_itself():
    clock = SimpleNamespace(end_step=lambda: ({"step": 3.0, "step/a/b": 1.0}, {"other_cpu_s": 0.0}))
    timers.log_only_the_step(clock)
    assert clock.end_step() == ({"step": 3.0}, {"other_cpu_s": 0.0, "overlapping_s/a/b": 1.0})
    tree = tree_for("swift", "4.6.0", "vllm", mode_of("swift", "4.6.0", {}, {"resolved": {"trainer": ASYNC}}))
    assert tree.overlap and not tree_for("swift", "4.6.0", "vllm", mode_of("swift", "4.6.0", {}, {})).overlap
    assert tree.unit_not_summed("overlapping_s/a/b") == "s"
    # The workload's GPUs are all that there are, the server's among them.
    assert SWIFT.gpus_beside(ASYNC, tree, True) == 0
    assert SWIFT.gpus_beside(ASYNC, tree_for("swift", "4.6.0", "vllm", "native"), True) is None


OWN = "class Twice:\n    def step(self): ...\n"


def turns_of(folder, code, name="Twice"):
    """TRL beside swift with a scheduler of a user's file."""
    (folder / "own.py").write_text(code)
    scheduler = {"source": str(folder / "own.py"), "class": name}
    arms = {name: RAW["arms"][name] | {"options": {}} for name in ("trl", "swift")}
    arms["swift"]["options"] = {"multi_turn_scheduler": scheduler, "max_turns": 3}
    return plan_runs(parse_config(RAW | {"arms": arms}), stack_facts)


def test_a_users_scheduler_travels_as_a_users_reward_does(tmp_path):
    plan = turns_of(tmp_path, OWN)
    spec, args = plan.runs["swift-s0"].spec, plan.runs["swift-s0"].spec["trainer_args"]
    told = args["multi_turn_scheduler"]
    assert (told["source"], told["code"], args["max_length"]) == ("own.py", OWN, 3 * 80)
    assert "code" not in spec["options"]["multi_turn_scheduler"]
    (elsewhere := tmp_path / "elsewhere").mkdir()
    assert turns_of(elsewhere, OWN).runs["swift-s0"].fingerprint == spec["fingerprint"]
    assert turns_of(tmp_path, OWN + "# more").runs["swift-s0"].fingerprint != spec["fingerprint"]
    found = preflight(plan)
    assert not found.impossible and OWN not in str(found.as_json())
    rows = {row.setting: row for row in found.ledger}
    assert rows["max_turns"].verdict == "unverifiable"
    assert rows["multi_turn_scheduler.sha256"].values["swift"] == told["sha256"]


@pytest.mark.parametrize(
    ("code", "says"), [("class Twice(:\n", "own.py, line 1"), ("class Once: ...\n", "own.py: unknown class 'Twice'")]
)
def test_a_users_scheduler_that_is_none_is_refused_while_it_is_planned(tmp_path, code, says):
    with pytest.raises(UserError) as caught:
        turns_of(tmp_path, code)
    assert says in str(caught.value)


def test_all_of_swifts_own_schedulers_are_known(stack_python):
    (file,) = stack_python("swift-vllm-cpu").parents[1].glob("lib/python*/site-packages/swift/rollout/multi_turn.py")
    table = file.read_text(encoding="utf-8").rpartition("multi_turns = {")[2]
    assert set(re.findall(r"'(\w+)':", table)) == {"math_tip_trick", *SCHEDULERS}


def test_a_server_has_the_trainers_engine_settings(monkeypatch, tmp_path):
    """Their names are those of swift's classes; test_swift_server.py has a real one, with two engines."""

    @dataclasses.dataclass
    class Shared:
        vllm_tensor_parallel_size: int = 1
        vllm_max_num_seqs: int = 1

    monkeypatch.setattr(arguments, "parse_command", lambda kind, settings: settings)
    monkeypatch.setattr(arguments, "model_arguments", lambda model: {"model": str(model)})
    for module, names in (
        ("swift.arguments.deploy_args", {"RolloutArguments": SimpleNamespace(_check_device_count=None)}),
        ("swift.rlhf_trainers.args_mixin", {"VllmArguments": Shared}),
    ):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))
    monkeypatch.setitem(sys.modules, "swift", ModuleType("swift"))
    case = CASES["a server"]
    lora = {"vllm_enable_lora": True, "lora_rank": 32}
    args = args_of("vllm", case["options"] | lora, case["words"] | {"dtype": "bfloat16"})
    told = {"vllm_tensor_parallel_size": 2, "vllm_max_num_seqs": 8, "vllm_enable_lora": True, "vllm_max_lora_rank": 32}
    # As in TRL; the format is that of generation, and not of the optimizer's weights.
    told |= {"vllm_disable_custom_all_reduce": False, "torch_dtype": "bfloat16", "max_length": 80}
    found = arguments.server_arguments(args, tmp_path, {"port": 7})
    assert found | told == found and found["port"] == 7 and "learning_rate" not in found


def test_a_tensor_parallel_engine_draws_by_the_runs_seed_and_anew_each_time():
    def seeds(place, seed, step):
        trainer = SimpleNamespace(state=SimpleNamespace(global_step=step))
        trainer._get_request_config = lambda: SimpleNamespace(seed=place)
        colocate.vary_seeds(trainer, seed)
        return [trainer._get_request_config().seed for _ in range(2)]

    drawn = [one for of in ((0, 0, 5), (1, 0, 5), (0, 1, 5), (0, 0, 6)) for one in seeds(*of)]
    assert len({*drawn}) == len(drawn) == 8 and all(0 <= seed < 1 << 62 for seed in drawn)
    assert seeds(0, 0, 5) == drawn[:2], "the same in all of its processes"
    assert seeds(None, 0, 5) == [None, None]


def test_settings_are_resolved_where_torchruns_own_port_is_in_use(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {})
    arguments.set_environment(tmp_path)
    assert int(os.environ["MASTER_PORT"]) not in (0, 29500)


@pytest.mark.parametrize(
    ("row", "ends", "sampled"),
    [
        ([5, 0, 6, 2, 0, 0], [2, 9], [5, 0, 6, 2]),
        ([5, 6, 0, 0, 0], 0, [5, 6, 0]),  # the end token is the padding token
        ([5, 0, 6], 2, [5, 0, 6]),
        ([5, 8, 0, 0], 2, [5, 8]),  # ended by a stop word of the template
    ],
)
def test_padding_is_left_out_only_behind_the_end(row, ends, sampled):
    assert sampled_ids(row, ends, padding=0) == sampled
