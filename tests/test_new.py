"""`rolloutbench new`: what it writes plans, a wrong answer is one line, and no file is overwritten."""

import itertools
import json
import random
import shlex
from pathlib import Path

import pandas as pd
import pytest
import yaml

from node.built_in_rewards import BUILT_IN
from workflow.cli import main
from workflow.config.plan import load_plan
from workflow.preflight import preflight
from workflow.slurm.site import read_site
from workflow.stacks import load_stack, stack_names

ROOT = Path(__file__).resolve().parents[1]
STACKS = [load_stack(name) for name in stack_names()]
HUB = "some-team/some-name@0123456789abcdef0123456789abcdef01234567"
CHOICES = {
    "gpus": [None, "0", "1", "8"],
    "nodes": [None, "2"],
    "trainer": [None, *sorted({one.trainer for one in STACKS})],
    "engines": [None, "vllm", "transformers", "vllm,sglang"],
    "model": [None, "./my model", HUB],
    "data": [None, "train.jsonl", "on, [a].parquet", HUB],
    "rewards": [None, "accuracy", ",".join(BUILT_IN), "length,my rewards.py:score"],
    "steps": [None, "1", "2", "500"],
    "partition": [None, "h100", "a,b-1"],
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model, data and a reward of one's own."""
    monkeypatch.chdir(tmp_path)
    Path("my model").mkdir()
    Path("my model/config.json").write_text("{}")
    rows = pd.DataFrame({"prompt": ["1+1"], "solution": ["2"], "x": [0]})
    rows.to_json("train.jsonl", orient="records", lines=True)
    rows.rename(columns={"prompt": "problem", "solution": "answer"}).to_parquet("on, [a].parquet")
    Path("my rewards.py").write_text("def score(completions):\n    return [1.0 for _ in completions]\n")
    return tmp_path


def flags(chosen):
    return [word for name, value in chosen.items() if value is not None for word in (f"--{name}", value)]


def allowed(chosen):
    """Whether stacks of these engines exist, and the trainer takes these GPUs."""
    gpus, nodes = int(chosen["gpus"] or 0), int(chosen["nodes"] or 1)
    fitting = [one for one in STACKS if (one.cuda is not None) == (gpus > 0)]
    trainer = chosen["trainer"] or ("verl" if gpus * nodes > 1 else "trl")
    engines = {one.engine for one in fitting if one.trainer == trainer}
    # Under verl an engine takes two GPUs of a node if not told otherwise; TRL and ms-swift have a process for each GPU,
    # and on a CPU for each node, where they generate themselves; SGLang has one alone.
    alone = nodes == 1 and gpus <= 1
    of_trl = {"transformers": True, "vllm": gpus > 0 or nodes == 1, "sglang": alone}
    takes = {"verl": dict.fromkeys(engines, gpus % 2 == 0), "trl": of_trl, "swift": of_trl}.get(
        trainer, dict.fromkeys(engines, alone)
    )
    takes |= {"lmdeploy": False}
    used = set((chosen["engines"] or "").split(",")) - {""} or {one for one in engines if takes[one]} or engines
    return bool(engines) and used <= engines and all(takes[one] for one in used)


def combinations(number):
    """Every value alone, and twice as many combinations by chance: those that can run, and those that cannot."""
    chance = random.Random(1)
    found = [dict.fromkeys(CHOICES)]
    found += [dict.fromkeys(CHOICES) | {name: value} for name in CHOICES for value in CHOICES[name]]
    alike = [dict(zip(CHOICES, row, strict=True)) for row in itertools.product(*CHOICES.values())]
    some = chance.sample(alike, 1500)
    return found + [one for one in some if allowed(one)][:number] + [one for one in some if not allowed(one)][:number]


def test_what_it_writes_plans_for_every_combination_of_flags(here, capsys):
    written = refused = 0
    for number, chosen in enumerate(combinations(10)):
        file = Path(f"{2000 + number}.yaml")  # as YAML reads it, a number
        words = shlex.join(map(str, flags(chosen)))
        code = main(["new", str(file), *flags(chosen)])
        out, err = capsys.readouterr()
        assert code == (0 if allowed(chosen) else 1), (words, err)
        if code:
            refused += 1
            assert err.startswith("error: ") and len(err.splitlines()) == 1 and not file.exists(), (words, err)
            continue
        written += 1
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        plan = load_plan(raw)
        assert not preflight(plan).impossible and raw["experiment"] == file.stem, words
        assert {run.spec["workload"]["steps"] for run in plan.runs.values()} == {int(chosen["steps"] or 20)}, words
        assert len(plan.runs) == 2 * len(plan.config.arms), words
        profile = Path("profiles", file.stem)
        assert profile.exists() == (chosen["partition"] is not None), words
        if chosen["partition"]:
            site, gpus = read_site(profile), int(chosen["gpus"] or 0)
            assert f"rolloutbench check {file} " in out and f"rolloutbench run {file}\n" in out
            assert repr(chosen["partition"]) in (profile / "config.yaml").read_text(encoding="utf-8") and site
            assert f"'gpu:{gpus}'" in (profile / "config.yaml").read_text(encoding="utf-8") or not gpus
    assert written > 30 and refused > 10, (written, refused)


def test_the_commands_that_follow_can_be_copied_for_any_name(here, capsys):
    """A space in a folder's name, such as people have, is one word of the shell's."""
    assert main(["new", "my runs/実験.yaml", "--gpus", "0"]) == 0
    follow = capsys.readouterr().out.partition("next: ")[2].splitlines()
    assert len(follow) == 2 and all("my runs/実験.yaml" in shlex.split(line, comments=True) for line in follow), follow


def test_an_experiment_is_judged_by_its_own_profile_or_this_machine_and_not_by_the_shipped_example(rolloutbench):
    """A cluster's example lies in every checkout, for 8 GPUs: nobody named it."""
    Path("profiles").mkdir()
    Path("profiles/slurm").symlink_to(ROOT / "profiles" / "slurm")
    Path("slurm").symlink_to("profiles/slurm")
    said = rolloutbench("new", "one.yaml", "--gpus", "1").out.splitlines()
    assert "by default: trainer trl, model builtin:small-qwen2, data builtin:arithmetic; --trainer, --model" in said[2]
    assert said[-2].endswith("rolloutbench run one.yaml    # on a machine with 1 GPU")
    assert said[-1].strip().startswith("for Slurm: rm one.yaml, and the same command with --partition NAME")
    rolloutbench("new", "site.yaml", "--gpus", "1", "--partition", "a100")
    for file, judged in (("one", "by this machine (no --profile)"), ("site", "by profile profiles/site")):
        checked = rolloutbench("check", f"{file}.yaml", "--seconds-per-step", "100").out.splitlines()
        assert checked[0] == f"{file}.yaml: 6 runs of experiment {file}, {judged}"
        assert {line.split()[5] for line in checked if line.endswith(" start") and "trl-" in line} == {"1"}, checked
        assert ("walltime: unknown" in "\n".join(checked)) is (file == "one")
        assert not [line for line in checked if "profiles/slurm" in line]
    by_another = rolloutbench("check", "one.yaml", "--profile", "profiles/slurm", "--json").out
    assert json.loads(by_another)["judged"].endswith(", by profile profiles/slurm")


def test_without_flags_it_writes_an_experiment_for_a_cpu(here, capsys):
    assert main(["new"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("wrote my.yaml\nvllm, sglang, transformers: 6 runs of 20 steps each\nnext: ")
    assert yaml.safe_load(Path("my.yaml").read_text())["workload"]["gpus_per_node"] == 0
