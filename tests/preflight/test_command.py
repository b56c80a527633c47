"""What `rolloutbench check` finds, and the settings of TRL's stacks, resolved by TRL itself."""

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from common.errors import UserError
from engines.reported import TERMS as ENGINE_TERMS
from tests.programs import executable
from workflow.cli import main
from workflow.config.plan import load_plan, plan_runs, stack_facts
from workflow.config.reading import parse_config, read_yaml
from workflow.preflight import preflight
from workflow.preflight.cases import LaunchContext, settings_request, settings_requests
from workflow.preflight.composed import resolve_settings

ROOT = Path(__file__).resolve().parents[2]
RAW = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))

# What decides which tokens are drawn, in TRL's words; the seed and the number format with it.
TERMS = {
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length", "num_generations"),
    *("generation_kwargs", "chat_template_kwargs", "seed", "bf16", "fp16", "model_init_kwargs.dtype"),
}


_PHI4 = {
    **{"architectures": ["Phi3ForCausalLM"], "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40},
    **{"num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 100352, "max_position_embeddings": 16384},
}


@pytest.fixture
def config(rolloutbench, tmp_path, monkeypatch):
    # These tests are not about this machine's disk, of which stacks may have left too little.
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**42))

    def write(raw=RAW, **workload):
        raw = copy.deepcopy(raw)
        raw["workload"] |= workload
        (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(raw))
        return tmp_path / "experiment.yaml"

    return write


def test_the_impossible_ends_with_1(config, capsys):
    assert main(["check", str(config(max_response_length=4000))]) == 1
    told = capsys.readouterr()
    assert "impossible (2): the run would fail, never end, or be mislabelled" in told.out
    # Each engine refuses it that is built for a length, and is named.
    refused, odd = (told.out[told.out.index(level) :] for level in ("impossible", "odd (1)"))
    for number, arm in enumerate(("sglang", "vllm"), 1):
        assert f"  {number}. {arm}: prompt and response may have" in refused and "[context]" in refused
    assert "transformers: prompt and response may have" in odd
    assert "quickstart cannot run as it is" in told.err


def test_data_that_is_not_here_is_lacking_and_all_else_is_checked(config, capsys):
    elsewhere = {"data": {"source": "/no/such/data.parquet"}, "model": {"source": "/no/such/model"}}
    assert main(["check", str(config(**elsewhere))]) == 1
    told = capsys.readouterr()
    assert "workload.data.source: no such file or folder: /no/such/data.parquet" in told.out
    assert "impossible: nothing" in told.out and "1 lacking" in told.err


def test_the_variables_are_those_of_the_script_that_the_profile_names(rolloutbench, tmp_path):
    (tmp_path / "setup.sh").write_text("export VLLM_TRACE_FUNCTION=1\n")
    (tmp_path / "site.sh").write_text("export NCCL_P2P_DISABLE=1\n")
    train = {"slurm_partition": "h100", "runtime": 1200, "setup": f"'{tmp_path / 'site.sh'}'"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"executor": "slurm", "set-resources": {"train": train}}))
    said = rolloutbench("check", ROOT / "experiments" / "camino-2025.yaml", "--profile", tmp_path, "--json")
    found = {finding["code"]: finding["what"] for finding in json.loads(said.out)["findings"]}
    assert str(tmp_path / "site.sh") in found["nccl-p2p-disable"] and "vllm-trace-function" not in found


def findings(capsys, file):
    main(["check", str(file), "--json"])
    return {one["code"]: one for one in json.loads(capsys.readouterr().out)["findings"]}


@pytest.mark.parametrize(
    ("workload", "code", "level", "what"),
    [
        ({"save_steps": 50}, "save-steps", "impossible", "a checkpoint every 50 steps, and the run has 12"),
        ({"model": {"source": "microsoft/phi-4", "revision": "0" * 40}}, "disk", "lacking", "GiB for the weights of"),
        ({"model": {"source": "./phi-4"}, "save_steps": 5}, "disk", "lacking", "GiB for the newest checkpoints of 300"),
    ],
)
def test_what_cannot_run_as_it_is_meant_fails(config, capsys, workload, code, level, what):
    (config().parent / "phi-4").mkdir()
    (config().parent / "phi-4" / "config.json").write_text(json.dumps(_PHI4))
    found = findings(capsys, config({**RAW, "seeds": list(range(100))}, **{"save_steps": 1} | workload))
    assert found[code]["level"] == level and what in found[code]["what"], found.keys()


def test_the_terms_that_differ_are_named_beside_their_number(config, capsys):
    arms = copy.deepcopy(RAW["arms"])
    arms["vllm"]["options"] = {"weight_decay": 0.1}
    main(["check", str(config(RAW | {"arms": arms}))])
    assert re.search(r"^ledger: \d+ different \(.*weight_decay.*\)", capsys.readouterr().out, re.MULTILINE)


def test_a_folder_that_nothing_expands_fails(config, capsys, monkeypatch):
    arms = copy.deepcopy(RAW["arms"])
    arms["vllm"]["env"] = {"HF_HOME": "/scratch/$USER/hf"}
    found = findings(capsys, config(RAW | {"arms": arms}))
    assert found["not-expanded"]["level"] == "impossible" and found["not-expanded"]["arms"] == ["vllm"]
    monkeypatch.setenv("HF_HOME", "/scratch/$USER/hf")
    assert "never expanded" in findings(capsys, config())["folders"]["what"]


@pytest.mark.full("libraries of a stack")
def test_a_misspelt_option_is_refused_in_the_words_of_a_stack_that_is_built(config, capsys, stack_python):
    stack_python("trl-transformers-cpu")
    arms = {"transformers": RAW["arms"]["transformers"] | {"options": {"learning_rat": 1}}}
    file = config(RAW | {"arms": arms, "baseline": "transformers"})
    (file.parent / ".stacks").symlink_to(ROOT / ".stacks")
    one = findings(capsys, file)["setting-refused"]
    assert one["level"] == "impossible" and "learning_rat is no setting of TRL" in one["what"]
    assert "did you mean learning_rate?" in one["what"]


@pytest.mark.full("libraries of a stack")
def test_trls_own_settings_tell_of_no_difference_but_the_engines(stack_python, tmp_path, capfd):
    plan = load_plan(RAW)
    composed = {}
    for one, run in settings_requests(plan).items():
        stack = tmp_path / one
        stack.mkdir()
        (stack / "env").symlink_to(stack_python(run.stack).parents[1])
        (stack / "verify.json").write_text("{}")
        resolve_settings(settings_request(run), stack / "verify.json", tmp_path / f"{one}.json")
        composed[one] = json.loads((tmp_path / f"{one}.json").read_text())
        assert composed[one]["version"] == "1.16.0" and composed[one]["settings"]["max_steps"] == 12
        assert not {"output_dir", "run_name"} & set(composed[one]["settings"])
    seen = preflight(plan, LaunchContext(), composed)
    assert len(composed) == 3 and [finding.code for finding in seen.findings] == ["sglang-speed-on-cpu"]
    assert len(seen.ledger) > 150
    assert {row.setting: row.verdict for row in seen.ledger if row.verdict != "equal"} == {
        "use_vllm": "different",
        "use_sglang": "different",
        "vllm_max_model_length": "equivalent",
        # What engines choose themselves they tell when they start.
        **dict.fromkeys(ENGINE_TERMS, "unverifiable"),
    }
    assert {row.setting for row in seen.ledger} >= TERMS
    # What SGLang cannot be told is named before the queue.
    one, run = next(item for item in settings_requests(plan).items() if "use_sglang" in item[1].spec["trainer_args"])
    request = copy.deepcopy(settings_request(run))
    request["trainer_args"]["generation_kwargs"] = {"min_tokens": 3}
    with pytest.raises(UserError, match="the trainer rejects these settings"):
        resolve_settings(request, tmp_path / one / "verify.json", tmp_path / "none.json")
    assert "generation_kwargs.min_tokens is no sampling parameter of SGLang; allowed: " in capfd.readouterr().err
    for option, near in (
        ("sglang_disable_cuda_graphs", "no option of SGLang 0.5.23 (did you mean disable_cuda_graph?)"),
        ("vllm_gpu_memory_utilisation", "(did you mean vllm_gpu_memory_utilization?)"),
    ):
        request = copy.deepcopy(settings_request(run))
        request["trainer_args"][option] = True
        with pytest.raises(UserError, match="the trainer rejects these settings"):
            resolve_settings(request, tmp_path / one / "verify.json", tmp_path / "none.json")
        assert f"trainer_args.{option} is no" in (said := capfd.readouterr().err) and near in said


@pytest.mark.full("libraries of a stack")
def test_what_vllms_server_would_refuse_is_told_before_the_queue(stack_python, tmp_path, capfd):
    (tmp_path / "env").symlink_to(stack_python("trl-vllm-cpu").parents[1])
    (tmp_path / "verify.json").write_text("{}")
    args = {"use_vllm": True, "vllm_mode": "server", "max_steps": 3, "num_generations": 2}
    for options, said in (
        # Its parser would take this one for `--max-num-seqs`, as a server does.
        ({"max-num-seq": 16}, "vllm_server_args.max_num_seq is no option of vLLM 0.31.0 (did you mean max_num_seqs?)"),
        ({"max_num_seqs": "many"}, "vLLM's server refuses vllm_server_args: argument --max-num-seqs"),
    ):
        request = {"trainer": "trl", "trainer_args": {**args, "vllm_server_args": options}, "rewards": []}
        assert main(_resolve(request, tmp_path)) == 1
        refusal = next(line for line in capfd.readouterr().err.splitlines() if "error: " in line)
        assert said in refusal
    allowed = {"max_num_seqs": 16, "enforce_eager": True, "compilation_config": {"mode": 0}}
    request = {"trainer": "trl", "trainer_args": {**args, "vllm_server_args": allowed}, "rewards": []}
    assert main(_resolve(request, tmp_path)) == 0
    composed = json.loads((tmp_path / "out.json").read_text())["settings"]
    assert composed["vllm_server_args.max_num_seqs"] == 16


def test_what_trl_would_refuse_is_told_before_the_queue(stack_python, tmp_path, capfd):
    (tmp_path / "env").symlink_to(stack_python("trl-transformers-cpu").parents[1])
    (tmp_path / "verify.json").write_text("{}")
    request = {"trainer": "trl", "trainer_args": {"num_generations": 1, "max_steps": 3}, "rewards": []}
    assert main(_resolve(request, tmp_path)) == 1 and "TRL refuses" in capfd.readouterr().err


@pytest.mark.full("libraries of a stack")
def test_settings_for_a_gpu_are_resolved_where_there_is_none(stack_python, tmp_path):
    """As on a login node: bfloat16 is asked for, and there is no device that has it."""
    (tmp_path / "env").symlink_to(stack_python("trl-transformers-cpu").parents[1])
    (tmp_path / "verify.json").write_text("{}")
    raw = read_yaml(ROOT / "experiments" / "tinyswallow-emoji.yaml")
    raw["shared"]["trl"]["options"]["model_init_kwargs"] = {"attn_implementation": "sdpa"}
    args = plan_runs(parse_config(raw), stack_facts).runs["vllm-s1"].spec["trainer_args"]
    assert (
        main(_resolve({"trainer": "trl", "trainer_args": args, "rewards": raw["workload"]["rewards"]}, tmp_path)) == 0
    )
    settings = json.loads((tmp_path / "out.json").read_text())["settings"]
    assert settings["bf16"] is True and "use_cpu" not in settings
    assert {name: settings[f"vllm_{name}"] for name in ("mode", "enable_sleep_mode", "max_model_length")} == {
        "mode": "colocate",
        "enable_sleep_mode": True,
        "max_model_length": 512,
    }
    # TRL's own default, and the weights' format where an option says nothing of it.
    assert settings["gradient_checkpointing"] is True and settings["model_init_kwargs.dtype"] == "float32"


def _resolve(request, folder):
    stack, out = folder / "verify.json", folder / "out.json"
    return ["resolve-settings", json.dumps(request), "--stack", str(stack), "--out", str(out)]


def test_slurm_is_asked_about_one_job_of_each_kind(rolloutbench, tmp_path, monkeypatch):
    train = {"slurm_partition": "h100", "runtime": "20h", "cpus_per_task": 64, "gres": "gpu:8", "qos": "high"}
    resources = {"default-resources": {"slurm_partition": "cpu"}, "set-resources": {"train": train}}
    train["slurm_extra"] = "--exclusive"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"executor": "slurm", **resources}))
    asked = tmp_path / "asked"
    refusal = "echo 'allocation failure: Invalid qos specification' >&2; exit 1"
    (tmp_path / "bin").mkdir()
    executable(tmp_path / "bin" / "sbatch", f'echo "$@" >>{asked}\ncase "$*" in *qos*) {refusal};; esac')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    said = rolloutbench("check", ROOT / "experiments" / "camino-2025-equal.yaml", "--profile", tmp_path)
    assert said.code == 1
    assert "sbatch refuses a training job of vllm, sglang: Invalid qos specification [slurm-refuses]" in said.words
    assert "change: correct qos under set-resources: train: in the profile" in said.words
    training, light = (line.split() for line in asked.read_text().splitlines() if "--test-only" in line)
    assert {"--partition=h100", "--qos=high", "--gres=gpu:8", "--exclusive", "--time=1200"} <= set(training)
    assert "--partition=cpu" in light
