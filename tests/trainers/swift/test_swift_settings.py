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
from trainers.swift.trainer import SCHEDULERS, SWIFT, trainer_args
from trainers.workload import Workload
from workflow.config.model import Arm
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config
from workflow.preflight import preflight

from ...attempts import ROOT, run_python

RAW = yaml.safe_load((ROOT / "tests" / "trainers" / "trainers-cpu.yaml").read_text(encoding="utf-8"))


def args_of(arm=None, **words):
    raw = RAW | {"workload": RAW["workload"] | words}
    # Those with vLLM take one process on a CPU.
    raw["arms"] = {"trl": RAW["arms"]["trl"], "swift": RAW["arms"]["swift"] | (arm or {})}
    return dict(plan_runs(parse_config(raw), stack_facts).runs["swift-s0"].spec["trainer_args"])


def test_the_words_are_translated():
    args = args_of(lr_warmup_steps=3, dtype="bfloat16", save_steps=0, top_p=0.9)
    assert (args["per_device_train_batch_size"], args["gradient_accumulation_steps"]) == (4, 2)
    assert (args["max_completion_length"], args["max_length"], args["top_p"]) == (16, 80, 0.9)
    assert (args["lr_scheduler_type"], args["warmup_steps"]) == ("constant_with_warmup", 3)
    assert (args["bf16"], args["fp16"], args["torch_dtype"]) == (True, False, "float32")
    assert (args["save_strategy"], args["use_cpu"], args["reward_weights"]) == ("no", True, [1.0, 0.5, 0.2])
    assert args_of({"options": {"adam_beta2": 0.95}})["adam_beta2"] == 0.95


ASYNC = {"use_vllm": True, "vllm_mode": "server", "async_generate": True}
CUDA = StackFacts("swift", "vllm", "cuda", "4.6.0", "0" * 12)


def engine_args(stack, **options):
    workload = Workload.model_validate(RAW["workload"])
    arm = Arm(trainer="swift", engine="vllm", stack="x", options=options)
    args = trainer_args(arm, workload, 0, stack)
    return {name: value for name, value in args.items() if "vllm" in name or name == "sleep_level"}


def test_vllm_is_built_as_trl_builds_its_own():
    shared = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_len": 80}
    shared["vllm_engine_kwargs"] = {"max_num_batched_tokens": 4096}
    assert engine_args(dataclasses.replace(CUDA, accelerator="cpu")) == shared
    assert engine_args(CUDA) == shared | {"vllm_gpu_memory_utilization": 0.3, "sleep_level": 2}
    with pytest.raises(UserError, match=r"tuner_type must be full or lora .* engine vllm \(got adalora\)"):
        engine_args(CUDA, tuner_type="adalora")
    with pytest.raises(UserError, match=r"vllm_speculative_config does nothing .* vllm_mode: server"):
        engine_args(CUDA, vllm_speculative_config={"method": "ngram"})
    # At level 2 ms-swift sends the base's weights with each adapter.
    assert engine_args(CUDA, vllm_enable_lora=True)["sleep_level"] == 1
    assert engine_args(CUDA, sleep_level=0)["sleep_level"] == 0


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
    options = {"vllm_mode": "server", "vllm_tensor_parallel_size": 2, "vllm_enable_lora": True, "lora_rank": 32}
    workload = Workload.model_validate(RAW["workload"] | {"gpus_per_node": 4, "dtype": "bfloat16"})
    args = trainer_args(Arm(trainer="swift", engine="vllm", stack="x", options=options), workload, 0, CUDA)
    assert (args["vllm_gpu_memory_utilization"], args["vllm_max_num_seqs"]) == (0.9, 8)
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
    ("arm", "words", "says"),
    [
        ({"options": {"learning_rate": 1}}, {}, "options.learning_rate of an arm is not free"),
        ({"options": {"max_turns": 2}}, {}, "options.max_turns does nothing without options.multi_turn_scheduler"),
        ({}, {"nodes": 3}, "batch_size must be a multiple of the 3 processes that trainer swift"),
        (
            {"engine": "vllm", "stack": "swift-vllm-cpu"},
            {"nodes": 2},
            "trainer swift with engine vllm on a CPU trains in one process",
        ),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused(arm, words, says):
    with pytest.raises(UserError) as caught:
        # TRL refuses some of the words, too: alone it says so itself.
        raw = RAW | {"workload": RAW["workload"] | words, "arms": {"swift": RAW["arms"]["swift"] | arm}}
        plan_runs(parse_config(raw | {"baseline": "swift"}), stack_facts)
    assert says in str(caught.value)


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
