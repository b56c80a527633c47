"""`rolloutbench new --from run.sh`: the experiment's own arm has the script's settings, and the list says the rest."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from common.dotted import flatten, nested_settings
from common.errors import UserError
from tests.attempts import ROOT, job_environment
from tests.launch_scripts.parsed_arguments import NOT_HERE
from tests.patience import run as run_patiently
from tests.trainers.composed import composed_by
from tests.trainers.verl.tiers import SECOND
from trainers.verl.given import TABLE
from workflow.cli import main
from workflow.commands import new_from_script as from_script
from workflow.config.plan import load_plan
from workflow.launch_scripts.launch import read_launch_script
from workflow.slurm.site import read_site

# Those of ms-swift are a page's: a server on one of eight GPUs, eight engines beside the trainer, one GPU with and
# without vLLM, and DAPO.
SCRIPTS = Path(__file__).parent / "scripts"
ARTICLE = json.loads((ROOT / "tests/trainers/article.json").read_text(encoding="utf-8"))["script"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def article_script():
    values = {key: f"[{','.join(v)}]" if isinstance(v, list) else v for key, v in ARTICLE.items()}
    settings = " \\\n".join(f" {key}={value}" for key, value in values.items())
    return (SCRIPTS / "article.sh").read_text(encoding="utf-8").format(settings)


def written(text, *arguments):
    """The experiment that the command writes, and what it prints."""
    Path("run.sh").write_text(text, encoding="utf-8")
    return _written(Path("run.sh"), *arguments)


def _written(script, *arguments):
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["new", "run.yaml", "--from", str(script), *arguments]) in (0, None)
    return yaml.safe_load(Path("run.yaml").read_text(encoding="utf-8")), " ".join(said.getvalue().split())


def planned(script):
    """The script, and the plan of its experiment, with the list."""
    none = dict.fromkeys(("file", "stack_python", "engines", "steps", "model", "data", "partition"))
    args = argparse.Namespace(from_=script, **none)
    read = read_launch_script(script)
    stacks = from_script._stacks(read, args)
    plan = from_script._planned(from_script._experiment(read, stacks, "x", script, args), stacks, read)
    read.left += from_script.differences(read, plan)
    return read, plan


def own_arguments(plan):
    run = next(run for run in plan.runs.values() if run.spec["arm"] == plan.config.baseline)
    return dict(run.spec["trainer_args"])


def named(read):
    """The settings that the list names, by their last part."""
    return {word.rpartition(".")[2] for one in read.left for word in re.findall(r"[\w.]+", f"{one.what} {one.why}")}


def test_the_articles_script_becomes_the_experiment_that_was_written_by_hand():
    raw, said = written(article_script())
    by_hand = yaml.safe_load((ROOT / "experiments" / "camino-2025.yaml").read_text(encoding="utf-8"))
    wanted = by_hand["workload"] | {"steps": 20}
    for placed in ("model", "data", "rewards", "gpu", "temperature", "dtype"):
        del wanted[placed]
    assert raw["workload"].items() >= wanted.items()
    assert raw["workload"]["rewards"] == [
        {"source": ARTICLE["custom_reward_function.path"], "function": "compute_score", "signature": "verl"}
    ]
    options = raw["shared"]["verl"]["options"]
    # What 0.4.1 lacks and later releases have is set in all of them.
    options = {key.replace("++", "+"): value for key, value in options.items()}
    ours, theirs = (nested_settings(one) for one in (options, by_hand["shared"]["verl"]["options"]))
    assert flatten(ours, keep_plus=True) == flatten(theirs, keep_plus=True)
    assert (raw["baseline"], [*raw["arms"]]) == ("sglang", ["sglang", "vllm"])
    assert raw["shared"]["verl"]["env"] == {
        "CONDA_PATH": "~/conda_env_sglang124",
        "NCCL_SOCKET_IFNAME": "enp25s0np0",
        "NVTE_FUSED_ATTN": "1",
        "CUDA_LAUNCH_BLOCKING": "1",
        "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK": "True",
    }
    site = read_site(Path("profiles/run"))
    request = site.request()
    assert (request.site["partition"], request.cpus, request.gpus, request.runtime_min) == ("P08", 180, 8, 1200)
    assert request.errors == () and site.on_slurm
    setup = [line for line in Path("profiles/run/setup.sh").read_text().splitlines() if not line.startswith("#")]
    assert setup == [
        *("module reset", "module load nccl/2.22.3", "module load hpcx/2.18.1-gcc-cuda12/hpcx-mt"),
        *("source /apps/miniconda3/etc/profile.d/conda.sh", "unset ROCR_VISIBLE_DEVICES", "ulimit -v unlimited"),
    ]
    for part in ("--nodelist=gpu73", "--output=logs", "tee verl_demo.log", "WANDB_ENTITY", "total_epochs=2: a comp"):
        assert part in said
    assert "--stack-python ~/conda_env_sglang124/bin/python" in said
    assert "line 4: --nodelist=gpu73: all runs would wait for these nodes" in said


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.9.1", ["verl-sglang"]),
        pytest.param(
            "0.9.1", ["verl-two-files", "verl-dapo"], marks=pytest.mark.full("Hydra composes each in seconds")
        ),
        pytest.param("0.9.1", ["article"], marks=SECOND),
    ],
)
def test_verl_composes_the_scripts_settings_and_the_list_names_every_difference(version, names, here):
    cases = {}
    lists = {}
    for name in names:
        script = SCRIPTS / f"{name}.sh"
        if name == "article":
            script = here / "article.sh"
            script.write_text(article_script(), encoding="utf-8")
        read, plan = planned(script)
        args = own_arguments(plan)
        assert args["version"] == version
        # Hydra itself refuses what the list says that verl does not know, and an interpolation of the shell.
        theirs = [word.text for word in read.words if "=" in word.text and "no_such" not in word.text]
        theirs = [text.replace("$SLURM_JOB_NUM_NODES", "2") for text in theirs]
        # A key that the script's release lacks, and this one has.
        theirs = [f"++{text.lstrip('+')}" if text.startswith("+") else text for text in theirs]
        ours = [text for text in args["overrides"] if "no_such" not in text]
        cases |= {f"{name}, ours": ours, f"{name}, theirs": theirs}
        lists[name] = (named(read), read.trainer.launch)
    found = composed_by(version, cases, here)
    for name, (told, launch) in lists.items():
        assert launch is not None
        assert [found[f"{name}, {whose}"]["error"] for whose in ("ours", "theirs")] == [None, None]
        ours, theirs = (flatten(found[f"{name}, {whose}"]["config"]) for whose in ("ours", "theirs"))
        assert found[f"{name}, ours"]["error"] is None
        differ = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
        assert {key for key in differ if key.rpartition(".")[2] not in told and not launch.not_compared(key)} == set()
        assert len(differ) < 25


def _parsed(python, trainer, cases, folder):
    given, out = folder / "cases.json", folder / "parsed.json"
    given.write_text(json.dumps(cases), encoding="utf-8")
    program = [str(python), "-m", "tests.launch_scripts.parsed_arguments", trainer, str(given), str(out)]
    done = subprocess.run(program, cwd=ROOT, env=job_environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(out.read_text(encoding="utf-8")))


# Not settings of a step: what each run's job fills in, and lengths and batches under another name.
_OTHERWISE = {
    *NOT_HERE,
    *("output_dir", "logging_steps", "eval_steps", "per_device_eval_batch_size", "log_completions", "dataset_num_proc"),
    *("num_train_epochs", "max_steps", "seed", "fp16", "warmup_steps", "warmup_ratio", "reward_funcs", "loss_type"),
    *("reward_weights", "rlhf_type", "beta", "max_length", "generation_batch_size", "system", "vllm_server_timeout"),
    *("soft_cache_length", "gradient_accumulation_steps", "save_total_limit", "model_name_or_path", "rest"),
    *("attn_implementation", "model_init_kwargs", "vllm_max_model_length"),
}


@pytest.mark.parametrize("trainer", [pytest.param("swift", marks=pytest.mark.full("ms-swift imports slowly")), "trl"])
def test_the_trainers_own_parser_reads_the_same_and_the_list_names_every_difference(trainer, here, stack_python):
    cases, lists = {}, {}
    for file in sorted(SCRIPTS.glob(f"{trainer}*.sh")):
        read, plan, name = *planned(file), file.stem
        launch = read.trainer.launch
        assert launch is not None and read.trainer.name == trainer
        cases |= {f"{name}, ours": own_arguments(plan), f"{name}, theirs": launch.settings(read.words, read.around, "")}
        lists[name] = named(read)
    found = _parsed(stack_python(f"{trainer}-transformers-cpu"), trainer, cases, here)
    for name, told in lists.items():
        ours, theirs = (found[f"{name}, {whose}"] for whose in ("ours", "theirs"))
        differ = {key for key in ours if ours[key] != theirs.get(key) and key not in _OTHERWISE}
        # Empty arguments of vLLM are none, and swift fills in one loader later.
        assert differ - told - {"vllm_engine_kwargs", "dataloader_num_workers"} == set(), name


def test_the_pages_command_lines_are_experiments():
    raw, said = _written(SCRIPTS / "swift-server.sh")
    assert raw["arms"]["vllm"]["options"].items() >= {"vllm_mode": "server", "vllm_data_parallel_size": 1}.items()
    workload = raw["workload"]
    assert (workload["batch_size"], workload["gpus_per_node"], workload["num_generations"]) == (14, 8, 7)
    assert "num_infer_workers=1: the experiment has None" in said and "and 1 of the engine's server" in said
    assert "write it into workload.model.revision: git ls-remote" in said
    assert "next: write the commit of Qwen/" in said
    for path in Path().glob("*.yaml"):
        path.unlink()
    raw, said = _written(SCRIPTS / "swift-dapo.sh")
    assert raw["workload"]["rewards"][1] == {"name": "soft_overlong", "options": {"cache_length": 819}}
    options = raw["shared"]["swift"]["options"]
    assert options.items() >= {"epsilon_high": 0.28, "dynamic_sample": True, "tuner_type": "full", "fsdp": True}.items()
    assert "WANDB_API_KEY: looks like a secret" in said and "xxx" not in Path("run.yaml").read_text()


def test_a_script_of_two_nodes_with_arrays_secrets_and_unknown_settings():
    raw, said = _written(SCRIPTS / "verl-sglang.sh")
    assert (raw["workload"]["nodes"], raw["workload"]["steps"], raw["baseline"]) == (2, 200, "sglang")
    assert raw["arms"]["sglang"]["options"] == {
        "++actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend": "fa3"
    }
    assert raw["workload"]["rewards"] == [
        {"source": "rewards/score.py", "function": "score", "signature": "verl", "options": {"scale": 2}}
    ]
    request = read_site(Path("profiles/run")).request()
    assert (request.nodes, request.cpus, request.gpus, request.runtime_min) == (2, 96, 8, 720)
    assert (request.site["mem_mb"], request.site["extra"]) == (921600, {"exclusive": True})
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert not [path for path in files if "hf_aaa" in path.read_text()]
    assert "export PATH=$HOME/tools/bin:$PATH" in Path("profiles/run/setup.sh").read_text()
    # What verl does not know is refused when its stack composes the settings.
    assert raw["shared"]["verl"]["options"]["actor_rollout_ref.actor.use_no_such_setting"] == 1
    for part in ("HF_TOKEN: looks like a secret", "--array=0-3"):
        assert part in said
    # What was written can be planned, once the commit is there and the reward's file exists.
    Path("rewards").mkdir()
    Path("rewards/score.py").write_text("def score(solution_str, ground_truth, scale, **rest):\n    return scale\n")
    Path("data").mkdir()
    Path("data/train.parquet").write_bytes(b"")
    raw["workload"]["model"]["revision"] = "0" * 40
    assert len(load_plan(raw).runs) == 4


@pytest.mark.parametrize("words", ["check", "run", "snakemake -n", "snakemake"])
def test_a_commit_that_is_still_to_be_written_is_refused_by_every_command(words, here):
    """`new --from` writes a placeholder where the hub does not answer, and nothing passes with it."""
    data = "data.train_files=owner/rows data.train_batch_size=8 actor_rollout_ref.model.path=owner/model"
    _, said = written(f"{VERL} {data}\n")
    for what in ("model of owner/model", "data of owner/rows"):
        key, _, source = what.partition(" of ")
        assert f"write the commit of {source} into workload.{key}.revision of run.yaml" in said
    program, *flags = words.split()
    command = [str(Path(sys.executable).with_name("rolloutbench")), program, "run.yaml"]
    if program == "snakemake":
        profile = ["--profile", str(ROOT / "profiles" / "local"), "-s", str(ROOT / "workflow" / "Snakefile")]
        command = [str(Path(sys.executable).with_name(program)), *profile, "--configfile", "run.yaml", *flags]
    done = run_patiently(command, 300, cwd=here, env={**os.environ})
    told = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in told, told
    for key, source in (("model", "owner/model"), ("data", "datasets/owner/rows")):
        (line,) = (one for one in told.splitlines() if f"workload.{key}: revision is still" in one)
        assert f"`git ls-remote https://huggingface.co/{source} HEAD` prints first" in line
    assert not (here / "results").exists() and not (here / ".stacks").exists()


def test_what_is_printed_of_a_script_has_no_key(tmp_path):
    key = "0123456789abcdef" * 2 + "01234567"
    lines = f"#SBATCH --export=ALL,WANDB_API_KEY={key}\nwandb login {key}\n{VERL} data.max_prompt_length=64\n"
    (tmp_path / "run.sh").write_text(lines)
    _, said = _written(tmp_path / "run.sh")
    assert (
        "--export=ALL,WANDB_API_KEY=[hidden]" in said and "wandb: looks like a secret" in said and key[:32] not in said
    )


VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d.parquet "
    "actor_rollout_ref.model.path=/m actor_rollout_ref.rollout.name=vllm"
)
TRL = "--model_name_or_path /m --dataset_name d.jsonl --per_device_train_batch_size 8 --max_steps 4"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            f"accelerate launch --config_file z.yaml --num_machines 1 --num_processes $N trl/scripts/grpo.py {TRL}\n",
            ("--config_file z.yaml: the job starts the pro", "--num_processes $N: not set in the script: 1 is"),
        ),
        (f"ray job submit --runtime-env=e.yaml -- {VERL}\n", ("--runtime-env e.yaml: variables and packages",)),
        (f"srun --container-image=i.sqsh apptainer run i.sif {VERL}\n", ("--container-image i.sqsh, apptainer: the",)),
        (VERL.rpartition(" ")[0] + "\n", ("actor_rollout_ref.rollout.name: the script names no engine: vllm",)),
        (f"conda activate grpo\n{VERL}\n", ('--stack-python "$(conda run -n grpo which python)"',)),
        (f"export PATH=$HOME/bin:$PATH\n{VERL}\n", ("export PATH=$HOME/bin:$PATH: only a profile's setup",)),
        ("swift rlhf --rlhf_type grpo --model /m --dataset d.jsonl --model_type q --max_steps 4 "
         "--per_device_train_batch_size 8 --val_dataset v.jsonl\n",
         ("lr_scheduler_type='cosine': the experiment has", "model_type='q', val_dataset='v.jsonl': the experiment")),
        (f"trl grpo {TRL} --reward_model_name_or_path /r\n", ("reward_model_name_or_path='/r': the experiment has",)),
        (f"{VERL} trainer.experiment_name=x_$(date +%m%d %H)\n", ("experiment_name: names, trackers and places",)),
    ],
)  # fmt: skip
def test_what_the_experiment_does_not_have_is_in_the_list(text, parts):
    _, said = written(text)
    assert [part for part in parts if part not in said] == [] and "give it by hand" not in said, said


def test_a_checkpoint_comes_within_the_experiments_steps_so_that_it_passes_its_own_check(capsys):
    raw, said = written(f"{VERL} trainer.save_freq=50\n")
    assert raw["workload"]["save_steps"] == 20
    assert "trainer.save_freq=50: the experiment has 20 (workload.save_steps)" in said, said
    main(["check", "run.yaml"])
    said = capsys.readouterr().out
    assert "impossible: nothing" in said and "a checkpoint every" not in said, said


def test_data_that_the_script_does_not_set_is_asked_for():
    Path("run.sh").write_text(f"{VERL} data.train_files=$DATA\n")
    with pytest.raises(UserError, match=r"names no data .got .DATA, which it does not set.; give it: --data"):
        planned(Path("run.sh"))


def test_a_validation_file_is_looked_for_as_the_data_is():
    data = "data.train_files=$PWD/d.parquet data.val_files=$PWD/t.parquet trainer.test_freq=5"
    raw, said = written(f"{VERL} {data}\n")
    assert (raw["workload"]["data"]["source"], raw["workload"]["data"]["test_source"]) == ("d.parquet", "t.parquet")
    assert "d.parquet: data: no such path" in said and "t.parquet: validation: no such path" in said
    Path("run.yaml").unlink()
    raw, _ = written(f"{VERL} {data}\n", "--data", "builtin:arithmetic", "--model", "builtin:tiny-qwen2")
    assert "test_source" not in raw["workload"]["data"] and load_plan(raw).runs


def test_a_profile_requests_what_the_script_requests_and_nothing_of_the_template():
    head = "#SBATCH --gres=gpu:4\n#SBATCH --mem=0\n#SBATCH --mem-per-cpu=4G\n#SBATCH --comment=sk-" + 30 * "a" + "\n"
    lines = "N=$SLURM_JOB_NUM_NODES\nL=lib\nexport NODES=$N D=/x/$L:$LD\nml a/$L\n"
    _, said = written(f"#!/bin/bash\n{head}{lines}{VERL} trainer.n_gpus_per_node=4\n")
    train = read_site(Path("profiles/run")).train
    own = {"slurm_partition": "", "mem_mb": "0", "runtime": "0", "cpus_per_task": "0", "gres": "gpu:4"}
    assert train.items() >= {**own, "slurm_extra": "--mem-per-cpu=4G"}.items()
    for part in (
        "slurm_partition, runtime: no #SBATCH line has it",
        "cpus_per_task: no #SBATCH line has it",
        "--mem=0: all memory",
        "--comment: looks like",
    ):
        assert part in said
    setup = Path("profiles/run/setup.sh").read_text().splitlines()[2:]
    assert setup == ["ml a/lib", 'export NODES="$SLURM_JOB_NUM_NODES"', 'export D="/x/lib:$LD"']


def test_no_file_has_a_secret():
    token, password = "hf_" + 34 * "A", "https://u:secret@host/v1"
    lines = f"T={token}\nsource env.sh --token {token}\nml a/$T\nexport U={password}\nexport PATH=/x/$T:$PATH\n"
    options = f"+a.api_key=b0b +b.url={password} +c.d=$T +custom_reward_function.reward_kwargs.token=b0b"
    _, said = written(f"#SBATCH -p x\n#SBATCH --comment={token}\n{lines}WANDB_API_KEY=b0b {VERL} {options}\n")
    files = [path.read_text() for path in (Path("run.yaml"), *Path("profiles").rglob("*")) if path.is_file()]
    assert len(files) == 3
    assert [word for word in (token, "secret@", "b0b") for text in files if word in text] == []
    for name in ("source", "ml", "U", "PATH", "+a.api_key", "+b.url", "+c.d", "WANDB_API_KEY"):
        assert re.search(rf"(, |: ){re.escape(name)}[,:]", said), name


def test_a_server_beside_trl_has_other_gpus():
    server = (
        "CUDA_VISIBLE_DEVICES=4,5,6,7 trl vllm-serve --model /m --tensor-parallel-size 2 --data-parallel-size 2 &\n"
    )
    raw, said = written(f"{server}CUDA_VISIBLE_DEVICES=0,1,2,3 trl grpo {TRL} --use_vllm --vllm_mode server\n")
    assert (raw["workload"]["batch_size"], raw["workload"]["gpus_per_node"]) == (32, 6)
    assert "--data_parallel_size 2: TRL's server has one engine" in said
    assert "GPUs: 6: 4 of the trainer, and 2 of the engine's server" in said
    Path("run.yaml").unlink()
    raw, _ = written(f"trl grpo {TRL} --use_cpu\n")
    assert (raw["workload"]["gpus_per_node"], raw["workload"]["dtype"]) == (0, "float32")
    assert raw["arms"]["transformers"]["stack"].endswith("-cpu")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("python train.py --engine vllm\n", "starts no training that is read here; known"),
        ("python -m openrlhf.cli.train_ppo_ray --n 8\n", "starts no training that is read here; known"),
        (
            "python -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer\n",
            "line 1: --config-name=ppo_megatron_trainer: an experiment has verl's ppo_trainer",
        ),
        (f"{VERL} actor_rollout_ref.rollout.name=trtllm\n", "the script's engine: unknown engine 'trtllm'"),
        (f"{VERL} --config-path c --config-name other\n", "line 1: --config-name=other: an experiment has verl's pp"),
        (
            "torchrun --nproc_per_node 6 --nnodes $N swift/cli/rlhf.py --rlhf_type grpo --model /m --dataset d.json\n",
            "--nnodes .N: not set in the script: 1 is used; give --nodes",
        ),
        ("swift rlhf --rlhf_type dpo --model x\n", "trains with --rlhf_type dpo, and an experiment compares GRPO"),
    ],
)
def test_a_script_without_such_a_training_is_told_in_its_own_terms(text, says):
    Path("run.sh").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=says) as caught:
        planned(Path("run.sh"))
    assert "`rolloutbench ab` runs a script as it is" in str(caught.value)


@pytest.mark.parametrize("flag", ["gpus", "nodes", "steps"])
def test_a_number_is_refused_as_without_a_script(flag, capsys):
    Path("run.sh").write_text(article_script(), encoding="utf-8")
    assert main(["new", "--from", "run.sh", f"--{flag}", "abc"]) == 1
    assert capsys.readouterr().err.startswith(f"error: --{flag}: must be ")


def test_nothing_of_a_script_is_run():
    Path("run.sh").write_text("touch was-run; x=$(touch was-run)\n" + article_script(), encoding="utf-8")
    planned(Path("run.sh"))
    assert not Path("was-run").exists() and os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_misspelt_key_is_named_with_the_one_that_is_meant():
    rollout = "actor_rollout_ref.rollout"
    slips = {
        f"{rollout}.gpu_memory_utilisation": f"{rollout}.gpu_memory_utilization",
        f"{rollout}.tensor_model_parallel_sizee": f"{rollout}.tensor_model_parallel_size",
        "actor_rollout_ref.rolout.max_num_seqs": f"{rollout}.max_num_seqs",
        "trainer.total_trainnig_steps": "trainer.total_training_steps",
    }
    text = article_script().replace(" 2>&1", "".join(f" {key}=2" for key in slips) + " 2>&1")
    _, said = written(text)
    said = " ".join(said.split())
    for slip, meant in slips.items():
        assert f"{slip}: a slip (did you mean {meant}?)" in said, said
    assert said.count("did you mean") == len(slips)


@pytest.mark.parametrize("version", ["0.4.1", "0.9.1"])
def test_no_key_that_verl_has_is_called_misspelt(version):
    """Those of a release that no table names are close to no known one; what a table names of keys exists."""
    files = ROOT / "tests" / "trainers" / "verl" / "defaults"
    has = {one: set(json.loads((files / f"{one}.json").read_text())) for one in ("0.4.1", "0.9.1")}
    assert set(TABLE["launch"]["others"]) <= has["0.4.1"] | has["0.9.1"]
    needed = {"algorithm.adv_estimator": "grpo"} | dict.fromkeys(TABLE["launch"]["backends"], "fsdp")
    words = [f"{key}={value}" for key, value in (dict.fromkeys(sorted(has[version]), "1") | needed).items()]
    Path("run.sh").write_text(f"python -m verl.trainer.main_ppo {' '.join(words)}\n")
    left = read_launch_script(Path("run.sh")).left
    assert not [one for one in left if "did you mean" in one.why]


def test_a_number_that_the_caller_sets_is_asked_for_and_not_taken_in_silence():
    words = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=$NN "
    words += "data.max_response_length=$LENGTH trainer.total_training_steps=$STEPS data.train_files=a.parquet "
    text = f"python -m verl.trainer.main_ppo {words} actor_rollout_ref.model.path=Qwen/Qwen2.5-7B\n"
    raw, said = written(text, "--steps", "30")
    listed, _, following = said.partition(" next: ")
    assert "actor_rollout_ref.rollout.n=$NN: $NN: not set in the script: 1 is used; correct workload.num_gen" in listed
    assert "data.max_response_length=$LENGTH: $LENGTH: not set in the script: 512 is used" in listed
    assert "in run.yaml: set workload.num_generations by the value of actor_rollout_ref.rollout.n=$NN" in following
    assert "in run.yaml: set workload.max_response_length by the value of" in following
    assert raw["workload"]["steps"] == 30 and "set workload.steps" not in following
    Path("run.yaml").unlink()
    _, said = written(text.replace("$NN", "8"))
    assert "workload.num_generations" not in said and "set workload.steps by the value of" in said
