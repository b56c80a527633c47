"""`rolloutbench new --from run.sh`: the experiment's own arm has the script's settings, and the list says the rest."""

import argparse
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from common.dotted import flatten, nested_settings
from tests.attempts import ROOT, run_job
from tests.importing import run_snakemake
from tests.launch_scripts.parsed_arguments import NOT_HERE
from tests.trainers.composed import composed_by
from tests.trainers.verl.tiers import SECOND
from workflow.commands import new_from_script as from_script
from workflow.config.plan import load_plan
from workflow.launch_scripts.launch import read_launch_script
from workflow.slurm.site import read_site

# Those of ms-swift are a page's: a server on one of eight GPUs, eight engines beside the trainer, one GPU with and
# without vLLM, and DAPO.
SCRIPTS = Path(__file__).parent / "scripts"
ARTICLE = json.loads((ROOT / "tests/trainers/article.json").read_text(encoding="utf-8"))["script"]
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d.parquet "
    "actor_rollout_ref.model.path=/m actor_rollout_ref.rollout.name=vllm"
)
TRL = "--model_name_or_path /m --dataset_name d.jsonl --per_device_train_batch_size 8 --max_steps 4"
CASES = yaml.safe_load(Path(__file__).with_name("new_from.yaml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def article_script():
    values = {key: f"[{','.join(v)}]" if isinstance(v, list) else v for key, v in ARTICLE.items()}
    settings = " \\\n".join(f" {key}={value}" for key, value in values.items())
    return (SCRIPTS / "article.sh").read_text(encoding="utf-8").format(settings)


@pytest.fixture
def new_from(rolloutbench):
    """The experiment that `new --from` writes for a script, and what it prints."""

    def new(script, *flags):
        said = rolloutbench("new", "run.yaml", "--from", script, *flags)
        return yaml.safe_load(Path("run.yaml").read_text(encoding="utf-8")) if said.code == 0 else None, said.words

    return new


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


def test_the_articles_script_becomes_the_experiment_that_was_written_by_hand(new_from):
    Path("run.sh").write_text(article_script(), encoding="utf-8")
    raw, _ = new_from("run.sh")
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
    assert [*raw["arms"]] == ["sglang", "vllm"]


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
def test_verl_composes_the_scripts_settings_and_the_list_names_every_difference(version, names, here, warm_verl):
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
    found = composed_by(version, cases, here, warm_verl(version))
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
    done = run_job(python, "tests.launch_scripts.parsed_arguments", trainer, given, out)
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


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_of_a_script(name, new_from):
    """A key of `has` is a path through the experiment, one of `train` a resource of its profile."""
    case = CASES[name]
    script = Path("run.sh")
    if "file" in case:
        script = SCRIPTS / case["file"]
    else:
        words = {"<verl>": VERL, "<verl without engine>": VERL.rpartition(" ")[0], "<trl>": TRL}
        words["<article>"] = article_script()
        script.write_text(
            re.sub("<(verl|trl|article).*?>", lambda found: words[found[0]], case["script"]), encoding="utf-8"
        )
    raw, said = new_from(script, *case.get("flags", ()))
    assert [text for text in [*case.get("says", ()), case.get("refused", "")] if text not in said] == [], said
    assert [text for text in case.get("says_not", ()) if text in said] == []
    assert (raw is None) == ("refused" in case), said
    if raw is None:
        return
    for path, value in case.get("has", {}).items():
        held = raw
        for part in path.split("/"):
            held = held[int(part)] if isinstance(held, list) else held.get(part)
        assert held == value, path
    site = read_site(Path("profiles/run")) if "train" in case else None
    assert site is None or site.train.items() >= case["train"].items(), site.train
    setup = Path("profiles/run/setup.sh").read_text().splitlines() if "setup" in case else []
    assert [line for line in case.get("setup", ()) if line not in setup] == []
    files = "".join(path.read_text() for path in (Path("run.yaml"), *Path("profiles").rglob("*")) if path.is_file())
    assert [text for text in case.get("not_in_files", ()) if text in files] == []
    if "planned" in case:
        assert load_plan(raw).runs


@pytest.mark.parametrize("words", ["check", "run", "snakemake"])
def test_a_commit_that_is_still_to_be_written_is_refused_by_every_command(words, here, new_from, rolloutbench):
    """`new --from` writes a placeholder where the hub does not answer, and nothing passes with it."""
    data = "data.train_files=owner/rows data.train_batch_size=8 actor_rollout_ref.model.path=owner/model"
    Path("run.sh").write_text(f"{VERL} {data}\n")
    _, said = new_from("run.sh")
    for what in ("model of owner/model", "data of owner/rows"):
        key, _, source = what.partition(" of ")
        assert f"write the commit of {source} into workload.{key}.revision of run.yaml" in said
    if words == "snakemake":
        done = run_snakemake(here, "run.yaml")
        code, told = done.returncode, done.stdout + done.stderr
    else:
        code, *streams = rolloutbench(words, "run.yaml")
        told = "".join(streams)
    assert code == 1 and "Traceback" not in told, told
    for key, source in (("model", "owner/model"), ("data", "datasets/owner/rows")):
        (line,) = (one for one in told.splitlines() if f"workload.{key}: revision is still" in one)
        assert f"`git ls-remote https://huggingface.co/{source} HEAD` prints first" in line
    assert not (here / "results").exists() and not (here / ".stacks").exists()


def test_nothing_of_a_script_is_run():
    Path("run.sh").write_text("touch was-run; x=$(touch was-run)\n" + article_script(), encoding="utf-8")
    planned(Path("run.sh"))
    assert not Path("was-run").exists() and os.environ["HF_HUB_OFFLINE"] == "1"
