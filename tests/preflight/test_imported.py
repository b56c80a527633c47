"""The preflight of imported arms: what is known of runs that have run, and what is only said of them."""

import copy
from pathlib import Path

import pytest

from workflow.commands.finding_lines import head_lines
from workflow.preflight import preflight
from workflow.preflight.cases import LaunchContext
from workflow.slurm.site import Site

from .plans import ARTICLE, ROLLOUT, looked_at, planned

MODEL = "actor_rollout_ref.model"


def imported(raw=ARTICLE, **changes):
    """The article's experiment, both arms imported with what a training would be told."""
    raw = copy.deepcopy(raw)
    for name, arm in raw["arms"].items():
        arm["import"] = f"{name}.log"
    return planned(raw, **changes)


def bare(**changes):
    """Two logs and nothing else; an arm's further words by its name."""
    arms = {engine: {"trainer": "verl", "engine": engine, "import": f"{engine}.log"} for engine in ("vllm", "sglang")}
    for name, more in changes.items():
        arms[name] = {**arms.get(name, {}), **more}
    return {"experiment": "article", "baseline": next(iter(arms)), "arms": arms}


def seen_of(raw, **held):
    """The preflight of imports; `held` are the contents of imported.json by arm."""
    from workflow.config.plan import plan_runs
    from workflow.config.reading import parse_config

    from .plans import _facts, _told

    plan = plan_runs(parse_config(raw), _facts)
    return preflight(plan, None, None, _told, {f"{arm}-s0": one for arm, one in held.items()})


def source(engine, version="0.4.1", **more):
    """What a wandb run of verl holds of itself, in part nested as wandb has it."""
    settings = {
        "data": {"train_batch_size": 16, "max_prompt_length": 1020, "max_response_length": 31744},
        "actor_rollout_ref": {
            "model": {"path": "microsoft/Phi-4-reasoning-plus"},
            "rollout": {"name": engine, "n": 4, "enforce_eager": True, "tensor_model_parallel_size": 2},
            "actor": {"optim": {"lr": 1e-6}, "use_dynamic_bsz": True},
        },
        "trainer": {"n_gpus_per_node": 8, "nnodes": 1, "total_training_steps": None},
        **more,
    }
    return {"resolved": settings, "versions": {"verl": version}, "last_step": 40}


def test_with_stack_and_workload_all_is_told_that_a_training_would_be():
    trained, read = looked_at(planned(ARTICLE), composed={}), looked_at(imported())
    unequal = [[one.code for one in seen.findings if one.level == "unequal"] for seen in (trained, read)]
    assert unequal[0] == unequal[1] == ["cuda-graphs", "cuda-launch-blocking"]
    assert trained.ledger == read.ledger
    assert not read.unverifiable
    assert "imported" in next(line for line in head_lines(read) if "sglang" in line)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("eager-and-cache", {"options": {f"{ROLLOUT}.enforce_eager": False}}),
        ("lora-sglang", {"options": {f"{MODEL}.lora_rank": 16}}),
        ("arch-list", {"env": {"TORCH_CUDA_ARCH_LIST": "80;90"}}),
    ],
)
def test_what_has_run_was_not_impossible(code, changes):
    assert code in {one.code for one in looked_at(planned(ARTICLE, **changes)).impossible}
    seen = looked_at(imported(**changes))
    assert not seen.impossible
    (found,) = [one for one in seen.findings if one.code == code]
    assert found.level == "odd" and "But it has run" in found.why


def test_the_queue_and_this_shell_are_nothing_to_runs_from_elsewhere():
    large = {"model": {"source": "meta-llama/Llama-3.1-70B", "revision": "0" * 40}, "save_steps": 0}
    place = LaunchContext(
        Site({"gres": "gpu:h100:8", "nodes": "1", "runtime": "60"}, Path("profiles/slurm")),
        {"vllm": 1e5, "sglang": 1e5},
        {"NCCL_DEBUG": ("INFO", "this shell")},
    )
    codes = {one.code for one in looked_at(planned(ARTICLE, **large), place).findings}
    theirs = {"never-ends", "nccl-debug"}
    assert theirs <= codes
    seen = looked_at(imported(**large), place)
    assert not theirs & {one.code for one in seen.findings}
    assert not any("walltime" in one for one in seen.unverifiable)


def test_a_source_that_holds_its_configuration_needs_no_stack():
    seen = seen_of(bare(), vllm=source("vllm"), sglang=source("sglang"))
    assert [case.version for case in seen.cases] == ["0.4.1", "0.4.1"] and not seen.unknown
    assert seen.cases[0].workload["batch_size"] == 64 and seen.cases[0].workload["steps"] == 40
    row = next(row for row in seen.ledger if row.setting.startswith("CUDA graphs"))
    assert (row.verdict, row.values) == ("different", {"vllm": "off", "sglang": "on"})
    assert "cuda-graphs" in {one.code for one in seen.findings}
    rows = {row.setting: row.verdict for row in seen.ledger}
    assert rows["actor_rollout_ref.actor.optim.lr"] == "equal" and rows[f"{ROLLOUT}.name"] == "different"


def test_what_the_source_holds_counts_more_than_what_is_said_of_it():
    held = source("vllm")
    held["resolved"]["actor_rollout_ref"]["rollout"]["max_num_seqs"] = 96
    plan = imported()
    from .plans import _told

    seen = preflight(plan, None, None, _told, {"vllm-s0": held})
    assert next(row for row in seen.ledger if row.setting == "sequences at once").values["vllm"] == "96"


def test_secrets_in_a_source_are_not_shown():
    held = {arm: source(arm, hub_token="s3cr3t", proxy="http://me:s3cr3t@host") for arm in ("vllm", "sglang")}
    assert "s3cr3t" not in str(seen_of(bare(), **held).as_json())


def test_without_either_the_ledger_says_that_it_cannot_tell_and_why():
    seen = seen_of(bare())
    assert {row.verdict for row in seen.ledger} == {"unverifiable"}
    assert seen.ledger[0].setting.startswith("the settings of the trainer") and set(seen.ledger[0].values) == {
        "vllm",
        "sglang",
    }
    assert "its source was not read yet, and the experiment gives it no stack" in seen.unverifiable[0]
    read = {"resolved": {}, "versions": {"verl": "0.4.1"}}
    assert "its source holds none of its settings" in seen_of(bare(), vllm=read).unverifiable[0]
    partly = {"resolved": {"trainer": {"nnodes": 1}}, "versions": {}}
    assert "its source holds no whole configuration of verl" in seen_of(bare(), vllm=partly).unverifiable[0]
    assert not any(finding.level == "unequal" for finding in seen.findings)


def test_one_arm_that_is_told_does_not_make_the_other_equal():
    seen = seen_of(bare(), vllm=source("vllm"))
    assert {row.verdict for row in seen.ledger} == {"unverifiable"}
    assert seen.ledger[0].values == {"vllm": "as below", "sglang": "unknown"}
    # A difference between those that are told stays one.
    three = bare(third={"trainer": "verl", "engine": "vllm", "import": "third.log"})
    other = source("vllm")
    other["resolved"]["data"]["train_batch_size"] = 8
    seen = seen_of(three, vllm=source("vllm"), third=other)
    row = next(row for row in seen.ledger if row.setting == "workload.batch_size")
    assert row.verdict == "different" and row.values["sglang"] == "unknown"


@pytest.mark.parametrize(
    ("fact", "values", "shown"),
    [
        ("batch_size", (64, 32), "workload.batch_size: 64 in vllm; 32 in sglang"),
        ("max_response_length", (16384, 8192), "workload.max_response_length: 16384 in vllm; 8192 in sglang"),
        ("gpu", ("H100-80GB", "A100-80GB"), "workload.gpu: H100-80GB in vllm; A100-80GB in sglang"),
        ("model", ("a/b", "a/c"), "workload.model: a/b in vllm; a/c in sglang"),
    ],
)
def test_what_is_said_differently_of_two_logs_is_unequal(fact, values, shown):
    """Of logs alone, and where a stack and a workload make up the rest."""
    words = {arm: {fact: value} for arm, value in zip(("vllm", "sglang"), values, strict=True)}
    logs = {arm: {"import": {**said, "runs": [{"source": arm}]}} for arm, said in words.items()}
    whole = copy.deepcopy(ARTICLE)
    for arm, more in logs.items():
        whole["arms"][arm] |= more
    for seen in (seen_of(bare(**logs)), looked_at(planned(whole))):
        (found,) = [one for one in seen.findings if one.code == "import-differs"]
        assert (found.level, found.arms, found.what) == ("unequal", ("vllm", "sglang"), shown)
        name = shown.partition(":")[0]
        assert [row.verdict for row in seen.ledger if row.setting == name] == ["different"]


def test_the_workload_tells_what_an_import_does_not():
    """Also of an arm without a stack, whose settings nobody can make up."""
    whole = copy.deepcopy(ARTICLE)
    whole["arms"] = bare()["arms"]
    whole["arms"]["vllm"]["import"] = {"batch_size": 32, "runs": [{"source": "vllm.log"}]}
    seen = looked_at(planned(whole))
    (found,) = [one for one in seen.findings if one.code == "import-differs"]
    assert found.what == "workload.batch_size: 32 in vllm; 16 in sglang"
    rows = {row.setting: row.verdict for row in seen.ledger}
    assert rows["workload.max_response_length"] == rows["workload.nodes"] == "equal"


def test_a_trl_run_by_its_arguments_alone():
    args = {"max_steps": 20, "num_generations": 8, "learning_rate": 1e-5, "max_completion_length": 64}
    arms = {
        name: {"trainer": "trl", "engine": engine, "import": f"{name}.log"}
        for name, engine in (("one", "vllm"), ("other", "transformers"))
    }
    raw = {"experiment": "article", "baseline": "one", "arms": arms}
    held = {
        name: {"resolved": {**args, "use_vllm": name == "one"}, "versions": {"trl": "1.16.0"}}
        for name in ("one", "other")
    }
    seen = seen_of(raw, **held)
    assert not seen.unknown and {row.setting: row.verdict for row in seen.ledger}["max_steps"] == "equal"
    assert {row.setting: row.verdict for row in seen.ledger}["use_vllm"] == "different"


def test_names_trackers_and_places_are_no_terms():
    """Two runs always have two names: whoever has logged them would never be on equal terms else."""
    raw = bare()
    raw["arms"]["vllm"]["same_as"] = "sglang"
    del raw["arms"]["vllm"]["trainer"], raw["arms"]["vllm"]["engine"]
    raw["baseline"] = "sglang"
    held = {arm: source("sglang") for arm in ("vllm", "sglang")}
    for arm, one in held.items():
        names = {"project_name": f"of-{arm}", "experiment_name": arm}
        places = {"default_local_dir": f"/{arm}", "default_hdfs_dir": f"hdfs://{arm}", "resume_from_path": f"/{arm}/1"}
        one["resolved"]["trainer"] |= {**names, **places, "logger": ["console", arm], "resume_mode": arm}
        # verl 0.9.1 says its names a second time there.
        one["resolved"]["actor_rollout_ref"]["rollout"]["trace"] = dict(names)
    seen = seen_of(raw, **held)
    assert [one.code for one in seen.findings if one.level == "unequal"] == []
    rows = {row.setting: row.verdict for row in seen.ledger}
    assert rows["trainer.experiment_name"] == rows["trainer.logger"] == rows["trainer.resume_mode"] == "equivalent"
    held["vllm"]["resolved"]["trainer"]["val_only"] = True
    (found,) = [one for one in seen_of(raw, **held).findings if one.level == "unequal"]
    assert found.what.startswith("1 setting differs between arms: trainer.val_only (")
    assert found.change == "runs that share what is not compared" and "options" not in found.source


@pytest.mark.parametrize("trainer", ["trl", "swift"])
def test_nor_are_those_of_trl_and_ms_swift(trainer):
    arms = {name: {"trainer": trainer, "engine": "vllm", "import": f"{name}.log"} for name in ("one", "other")}
    raw = {"experiment": "article", "baseline": "one", "arms": arms}
    names = ("run_name", "report_to", "hub_model_id", "output_dir", "logging_dir", "resume_from_checkpoint", "project")
    held = {
        arm: {"resolved": {"vllm_server_port": len(arm), **dict.fromkeys(names, arm)}, "versions": {trainer: "1.16.0"}}
        for arm in arms
    }
    assert [one.code for one in seen_of(raw, **held).findings if one.level == "unequal"] == []
    for arm, one in held.items():
        one["resolved"]["logging_steps"] = len(arm)
    (found,) = [one for one in seen_of(raw, **held).findings if one.level == "unequal"]
    assert "logging_steps (3 in one; 5 in other)" in found.what


def at(**factors):
    """Two logs of verl at one combination of factors."""
    arms = {name: {"import": {"runs": [{"source": name, "factors": factors}]}} for name in ("vllm", "sglang")}
    return bare(**arms)


def contradicted(raw, held):
    """What `factor-contradicts-run` says of an experiment whose arms all hold the same."""
    from workflow.config.plan import plan_runs
    from workflow.config.reading import parse_config

    from .plans import _facts, _told

    plan = plan_runs(parse_config(raw), _facts)
    seen = preflight(plan, None, None, _told, dict.fromkeys(plan.imports, held))
    found = [one for one in seen.findings if one.code == "factor-contradicts-run"]
    assert all(one.level == "impossible" for one in found) and (not found or "be compared" in seen.refusal)
    return [one.what for one in found]


def test_a_factor_that_the_run_itself_denies_is_an_error():
    """Else the report tells the run under a name that is not its own."""
    held = source("vllm")
    held["resolved"]["actor_rollout_ref"]["rollout"]["temperature"] = 1.0
    first, second = contradicted(at(**{"workload.temperature": 0.6}), held)
    where = "workload.temperature is 0.6 by factors, and 1.0 in the source's own configuration"
    assert first.endswith(where) and first.startswith("run vllm-") and second.startswith("run sglang-")
    # Also where the configuration is not whole, and of every seed: told once.
    runs = [{"source": f"{seed}", "seed": seed, "factors": {"workload.batch_size": 32}} for seed in range(4)]
    partly = {"resolved": {"data": {"train_batch_size": 16}, "actor_rollout_ref": {"rollout": {"n": 4}}}}
    of_batch = contradicted(bare(vllm={"import": {"runs": runs[:2]}}, sglang={"import": {"runs": runs[2:]}}), partly)
    assert len(of_batch) == 2 and of_batch[0].startswith("runs vllm-")
    trl = at(**{"workload.learning_rate": 1e-5})
    for arm in trl["arms"].values():
        arm |= {"trainer": "trl", "engine": "vllm"}
    assert len(contradicted(trl, {"resolved": {"learning_rate": 1e-6}})) == 2


@pytest.mark.parametrize(
    ("factor", "value", "held"),
    [
        ("temperature", 1, {"actor_rollout_ref": {"rollout": {"temperature": 1.0}}}),
        ("temperature", 0.6, {"actor_rollout_ref": {"rollout": {"n": 4}}}),  # not told
        ("learning_rate", 1e-6, {"actor_rollout_ref": {"actor": {"optim": {"lr": "1e-6"}}}}),  # YAML's text
        ("model.source", "a/b", {"actor_rollout_ref": {"model": {"path": "/models/mine"}}}),
        ("batch_size", 64, {"rollout": {"nnodes": 1}, "data": {"train_batch_size": 0}}),
        ("gpus_per_node", 16, {"rollout": {"nnodes": 1}, "trainer": {"n_gpus_per_node": 8}}),
    ],
)
def test_a_factor_that_may_be_true_is_not(factor, value, held):
    assert contradicted(at(**{f"workload.{factor}": value}), {"resolved": held}) == []


def test_what_a_configuration_that_is_not_whole_tells_is_told():
    held = {"resolved": {"trainer": {"nnodes": 1, "n_gpus_per_node": 8}, "data": {"max_response_length": 512}}}
    held["resolved"]["actor_rollout_ref"] = {"model": {"path": "a/b"}, "rollout": {"tensor_model_parallel_size": 2}}
    seen = seen_of(bare(), vllm=held, sglang=held)
    rows = {row.setting: (row.verdict, *row.values.values()) for row in seen.ledger}
    assert rows["workload.gpus_per_node"] == ("equal", "8", "8") and rows["workload.nodes"] == ("equal", "1", "1")
    assert rows["workload.max_response_length"] == ("equal", "512", "512")
    assert rows["workload.model"] == ("equal", "a/b", "a/b")
    assert rows["GPUs of one engine (tensor parallel)"] == ("equal", "2", "2")
    assert rows["workload.gpu"][0] == "unverifiable" and "no whole configuration" in seen.unverifiable[0]


def test_what_a_configuration_lacks_is_no_fact():
    """Of a part of verl's configuration it is not told what the engine does, nor that a setting is not set."""
    held = {arm: source(arm, version="0.9.1") for arm in ("vllm", "sglang")}
    seen = seen_of(bare(), **held)
    rows = {row.setting.partition(" (")[0]: row for row in seen.ledger}
    for name in ("prefill tokens in a pass", "prefix cache", "sleep between steps"):
        assert rows[name].verdict == "unverifiable" and rows[name].values["vllm"] == "unknown"
    assert "None" not in {value for row in seen.ledger for value in row.values.values()}
    held["vllm"]["resolved"]["data"]["truncation"] = "left"
    (found,) = [one for one in seen_of(bare(), **held).findings if one.code == "settings"]
    assert "data.truncation ('left' in vllm; unknown in sglang)" in found.what
    shown = {"prefill-limit", "prefix-cache", "sequence-limit", "sleep"}
    assert not shown & {one.code for one in seen.findings}


@pytest.mark.parametrize("version", ["0.7.1", ""])
def test_a_setting_is_compared_though_no_file_says_what_the_release_makes_of_it(version):
    eager, graphs = source("vllm", version), source("vllm", version)
    graphs["resolved"]["actor_rollout_ref"]["rollout"]["enforce_eager"] = False
    arms = {name: {"trainer": "verl", "engine": "vllm", "import": f"{name}.log"} for name in ("eager", "graphs")}
    seen = seen_of({"experiment": "x", "baseline": "eager", "arms": arms}, eager=eager, graphs=graphs)
    (finding,) = [one for one in seen.findings if one.level == "unequal"]
    assert finding.code == "settings" and f"{ROLLOUT}.enforce_eager (True in eager; False in graphs)" in finding.what
    rows = {row.setting: row.verdict for row in seen.ledger}
    assert rows[f"{ROLLOUT}.enforce_eager"] == "different" and "CUDA graphs" not in rows
    # Of two engines the same value may have two effects.
    seen = seen_of(bare(), vllm=source("vllm", version), sglang=source("sglang", version))
    rows = {row.setting: row.verdict for row in seen.ledger}
    assert rows[f"{ROLLOUT}.enforce_eager"] == "equal" and rows["CUDA graphs"] == "unverifiable"
