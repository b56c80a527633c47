"""`rolloutbench ab`: what it writes for a script, what it says of it, and that its experiment runs to a verdict."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.patience import run as run_patiently
from tests.programs import executable
from tests.trainers.command.script_bench import CONSOLE, FORMATS, program
from trainers.command.driver import keep, prepared
from workflow.checks.slurm_checks import _kinds
from workflow.cli import main
from workflow.config.plan import load_plan
from workflow.slurm.site import read_site

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """#!/bin/bash
set -euo pipefail
export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo rollout.name=vllm "$@"
"""
SBATCH = """#!/bin/bash
#SBATCH --job-name=grpo --output=%j.out
#SBATCH -p h100 -A project
#SBATCH --nodes=2 --gres=gpu:h100:8 --ntasks-per-node=4 --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --signal=USR1@120
srun python3 train.py --engine vllm
"""


@pytest.fixture
def ab(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder with these scripts; its exit code and what it says."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, script=SCRIPT, name="run.sh"):
        if not Path(name).exists():
            Path(name).write_text(script)
        with contextlib.suppress(SystemExit):
            code = main(["ab", name, *arguments])
            out = capsys.readouterr()
            return code, out.out + out.err
        return 2, capsys.readouterr().err

    return run


def test_it_writes_an_experiment_and_says_what_changes_where(ab):
    code, said = ab("--vary", "rollout.name=vllm,sglang")
    assert code == 0, said
    raw = yaml.safe_load(Path("run-ab.yaml").read_text())
    plan = load_plan(raw)
    assert list(plan.runs) == ["vllm-s0", "sglang-s0", "vllm-s1", "sglang-s1"], "the arms take turns"
    assert [arm["engine"] for arm in raw["arms"].values()] == ["vllm", "sglang"]
    assert ab("--vary", "rollout.name=vllm,sglang", "--gpus", "8", "--save", "gpus.yaml")[0] == 0
    own = load_plan(yaml.safe_load(Path("gpus.yaml").read_text())).runs["vllm-s0"].spec
    assert own["workload"] == {"nodes": 1, "gpus_per_node": 8}, "also where no partition is named"
    assert "vllm, sglang: rollout.name is replaced in line 4" in said
    assert "next: rolloutbench run run-ab.yaml\n" in said
    assert "0123456789abcdef" not in Path("run-ab.yaml").read_text() + json.dumps(plan.as_json())
    assert ab("--vary", "rollout.name=vllm,sglang", "--seeds", "3")[0] == 0, "its own file may be written again"
    Path("run-ab.yaml").write_text("experiment: mine\n")
    code, said = ab("--vary", "rollout.name=vllm,sglang")
    assert code == 1 and "was not written by this command" in said


def test_what_the_script_does_not_request_is_not_invented_and_light_jobs_have_no_gpu_node(ab, monkeypatch):
    slurm = Path("bin").absolute()
    executable(slurm / "sinfo", "printf 'h100*|up|gpu:8\\nold|down|(null)\\nlong|up|(null)\\n'")
    monkeypatch.setenv("PATH", f"{slurm}:{os.environ['PATH']}")
    head = "#SBATCH -p h100 --gres=gpu:8 --time=1:00:00\n"
    code, said = ab(
        "--vary",
        "engine=vllm,sglang",
        script=SBATCH.partition("#SBATCH")[0] + head + "python t.py --engine vllm\n",
        name="bare.sh",
    )
    assert code == 0, said
    site = read_site(Path("profiles/bare-ab"))
    request = site.request({"gpus_per_node": 8})
    assert request.cpus == 0 and not request.errors
    assert not {"cpus-per-task", "mem"} & set(
        next(iter(_kinds(site, [{"workload": {"gpus_per_node": 8}, "arm": "a"}])))[3]
    )
    assert "no #SBATCH line has cpus_per_task, and a job gets" in said
    assert site.light["slurm_partition"] == "long" and "light jobs" not in said


def test_a_slip_in_a_word_is_not_appended_in_silence(ab):
    for word in ("name", "rollouts.name"):
        code, said = ab("--vary", f"{word}=vllm,sglang")
        assert code == 1 and f"{word} is not in the script, which has rollout.name" in said, said
        assert not Path("run-ab.yaml").exists()
    code, said = ab("--vary", "rollout.tensor_model_parallel_size=1,2")
    assert code == 0 and "it is given as an argument" in said


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("actor_rollout_ref.rollout.nmae", "actor_rollout_ref.rollout.name"),
        ("actor_rollout_ref.rollout.nam", "actor_rollout_ref.rollout.name"),
        ("rolout.name", "actor_rollout_ref.rollout.name"),
        ("optm.lr", "actor_rollout_ref.actor.optim.lr"),
        ("ROLLUOT", "ROLLOUT"),
        ("actor_rollout_ref.rollout.top_k", ""),
        ("NCCL_IB_TC", ""),
        ("VLLM_USE_V2", ""),
    ],
)
def test_a_slip_is_told_from_another_setting(ab, word, meant):
    script = (
        "export NCCL_IB_HCA=mlx5 VLLM_USE_V1=1\nROLLOUT=${ROLLOUT:-vllm}\n"
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=$ROLLOUT actor_rollout_ref.rollout.top_p=1 "
        "actor_rollout_ref.actor.optim.lr=1e-6\n"
    )
    code, said = ab("--vary", f"{word}=1,2", script=script)
    assert code == bool(meant), said
    if meant:
        assert f"{word} is not in the script, which has {meant}; to add it" in said
        assert not Path("run-ab.yaml").exists()


def test_a_slip_in_a_value_is_a_doubt(ab):
    _, said = ab("--vary", "rollout.name=vllm,sglnag", "--set", "out=a/{rnu}/{run}/${trainer.name}/${HOME}")
    assert "? rollout.name=sglnag: no engine has this name (did you mean sglang?)" in said, said
    assert "{rnu} stays as it is (did you mean {run}?)" in said and said.count("stays as it is") == 1


def test_the_profile_is_what_the_script_requests(ab):
    code, said = ab("--vary", "engine=vllm,sglang", "--partition", "a100", script=SBATCH)
    assert code == 0, said
    site = read_site(Path("profiles/run-ab"))
    options = yaml.safe_load(Path("run-ab.yaml").read_text())["arms"]["vllm"]["options"]
    assert {key: options[key] for key in ("nodes", "gpus_per_node", "tasks_per_node")} == {
        "nodes": 2,
        "gpus_per_node": 8,
        "tasks_per_node": 4,
    }
    (spec, *_) = [run.spec for run in load_plan(yaml.safe_load(Path("run-ab.yaml").read_text())).runs.values()]
    request = site.request(spec["workload"])
    assert not request.errors
    found = {key: request.site[key] for key in ("partition", "account", "gres", "nodes", "runtime", "setup")}
    assert found == {
        **{"partition": "a100", "account": "project", "gres": "gpu:h100:8", "nodes": 2, "runtime": 480},
        "setup": "",
    }
    assert request.cpus == 64
    # Without Slurm here no partition without GPUs is known.
    assert site.light["slurm_partition"] == "a100" and "light jobs (stacks, inputs, report) go to a100, too" in said
    assert "--signal=USR1@120: the script gets SIGTERM" in said and "--job-name" not in said


def test_doubts_name_the_line_and_the_remedy(ab):
    script = (
        "source ~/env/bin/activate\nfor i in 1 2; do\n"
        "python3 train.py --engine vllm --output_dir out > log.txt 2>&1 &\ndone\n"
    )
    Path("env/bin").mkdir(parents=True)
    Path("env/bin/python").touch()
    code, said = ab("--vary", "engine=vllm,sglang", "--python", "env", script=script)
    assert code == 0, said
    for told in (
        "line 1: `source ",
        "line 3: the training is in a loop (for i=1)",
        "line 3: its output goes to log.txt, which is read instead of the console",
        "line 3: the training runs in the background and no `wait` follows",
        "line 3: there is no train.py in .",
        "--set 'output_dir={value}/{run}' gives each its own",
    ):
        assert told in said
    options = yaml.safe_load(Path("run-ab.yaml").read_text())["arms"]["vllm"]["options"]
    assert (options["read"], len(options["packages"])) == (["log.txt"], 12)
    code, said = ab("--vary", "engine=vllm,sglang", "--set", "output_dir=out/{run}", "--set", "SEED={seed}")
    assert "gives each its own" not in said and "the script's own seed" not in said
    Path("run.sh").write_text("ray job submit --no-wait -- python3 -m verl.trainer.main_ppo a.b=1\n")
    assert "line 1: `ray job submit --no-wait` does not wait" in ab("--vary", "a.b=1,2")[1]


SHOW = """#!/bin/bash
printf '<%s>' "$@"
"""


def argv_of(run_id, folder):
    """The arguments of a run's training, whose copy is written as for a job and run by bash."""
    plan = load_plan(yaml.safe_load(Path("run-ab.yaml").read_text()))
    spec, run = plan.runs[run_id].spec, folder / plan.folder / "runs" / run_id
    keep(spec, run)
    program = folder / "bin" / "python3"
    program.parent.mkdir(exist_ok=True)
    program.write_text(SHOW)
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin", "USER": "me", "LATER": "on-the-node", "ROLLOUTBENCH_SCRIPT": "s"}
    for name in ("trl", "swift"):
        (program.parent / name).unlink(missing_ok=True)
        (program.parent / name).symlink_to("python3")
    (copy,) = run.glob("script-*")
    command = ["bash", str(copy), *spec["trainer_args"]["arguments"]]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout[1:-1].split("><")


def shown(said):
    """The lines of the script and of its copies."""
    return [" ".join(line.split()) for line in said.splitlines() if " | " in line]


def test_a_key_that_the_script_has_twice_is_replaced_twice_and_shown_in_one_block(ab, tmp_path):
    script = "python3 train.py e=vllm \\\n  a=1 b=2 \\\n  a=3\n"
    code, said = ab("--vary", "a=1,2", script=script)
    assert code == 0 and "1, 2: a occurs 2 times: all are replaced in lines 2, 3" in said, said
    assert shown(said) == [
        *("line 2 | a=1 b=2 \\", "| a=3"),
        *("1 | a=1 b=2 \\", "| a=1"),
        *("2 | a=2 b=2 \\", "| a=2"),
    ]


def test_a_flag_whose_value_is_a_variable_is_replaced_with_it(ab, tmp_path):
    script = "#!/bin/bash\nMODE=colocate\npython3 train_grpo.py --use_vllm true --vllm_mode $MODE --seed ${SEED:-0}\n"
    code, said = ab("--vary", "vllm_mode=colocate,server", script=script)
    assert code == 0, said
    assert " ".join(argv_of("server-s0", tmp_path)) == "train_grpo.py --use_vllm true --vllm_mode server --seed 0"
    assert shown(said) == [
        "line 3 | python3 train_grpo.py --use_vllm true --vllm_mode $MODE --seed ${SEED:-0}",
        "colocate | python3 train_grpo.py --use_vllm true --vllm_mode colocate --seed ${SEED:-0}",
        "server | python3 train_grpo.py --use_vllm true --vllm_mode server --seed ${SEED:-0}",
    ]


@pytest.mark.parametrize(
    ("script", "flags", "trained", "told"),
    [
        (
            "python3 -m verl.trainer.main_ppo e=vllm",
            (),
            "trainer.default_local_dir=checkpoints/run-ab/sglang-s1 trainer.resume_mode=disable",
            "trainer.default_local_dir is not in the script: it is appended",
        ),
        (
            "python3 -m verl.trainer.main_ppo e=vllm trainer.default_local_dir=/s/$USER",
            ("--resume", "script"),
            "trainer.default_local_dir=/s/me/sglang-s1",
            "line 1 | python3 -m verl.trainer.main_ppo e=vllm trainer.default_local_dir=/s/$USER",
        ),
        (
            "python3 -m verl.trainer.main_ppo e=vllm trainer.resume_mode=auto",
            ("--set", "trainer.default_local_dir=mine/{run}"),
            "trainer.resume_mode=disable trainer.default_local_dir=mine/sglang-s1",
            "trainer.resume_mode is replaced in line 1",
        ),
        (
            "python3 -m verl.trainer.main_ppo e=vllm trainer.resume_mode=resume_path",
            (),
            "trainer.resume_mode=resume_path trainer.default_local_dir=checkpoints/run-ab/sglang-s1",
            "",
        ),
        ("trl grpo --e vllm --output_dir=out", (), "--output_dir=out/sglang-s1", "output_dir keeps its value"),
        ("trl grpo --e vllm", (), "--output_dir=checkpoints/run-ab/sglang-s1", "--output_dir is not in the script"),
        ("swift rlhf --e vllm --output_dir out", (), "--output_dir out/sglang-s1", "output_dir keeps its value"),
        ("swift rlhf --e vllm", (), "--e sglang", ""),
    ],
)
def test_no_run_of_a_known_trainer_finds_the_checkpoints_of_another(ab, tmp_path, script, flags, trained, told):
    code, said = ab("--vary", "e=vllm,sglang", *flags, script=f"{script}\n")
    assert code == 0 and told in " ".join(said.split()), said
    assert "another's checkpoint" not in said
    assert " ".join(argv_of("sglang-s1", tmp_path)).endswith(trained)


def test_that_runs_share_their_checkpoints_is_a_doubt_where_it_cannot_be_mended(ab):
    _, said = ab("--vary", "engine=vllm,sglang", script="python3 train.py --engine vllm\n", name="a.sh")
    assert "names no folder of checkpoints. If runs share one, a run may resume from another's checkpoint" in said
    _, said = ab("--vary", "rollout.name=vllm,sglang", "--set", "trainer.default_local_dir=one", name="c.sh")
    assert "trainer.default_local_dir=one is one folder for all runs" in said, said


def test_the_remedy_for_a_shared_folder_works_as_it_is_printed(ab, tmp_path):
    script = (
        "#!/bin/bash\nset -euo pipefail\n"
        "python3 -m mine.main_ppo e=vllm trainer.default_local_dir=/scratch/$USER/x-$(echo '$5')/y\n"
    )
    _, said = ab("--vary", "e=vllm,sglang", script=script)
    remedy = re.search(r"--set '([^']*)' gives each its own", said)[1]
    assert "was $USER" not in said, "USER is a part of the value only"
    code, said = ab("--vary", "e=vllm,sglang", "--set", remedy)
    assert code == 0 and "gives each its own" not in said, said
    assert "trainer.default_local_dir keeps its value and gets /{run} in line 3" in said
    assert argv_of("sglang-s1", tmp_path)[2:] == [
        "e=sglang",
        "trainer.default_local_dir=/scratch/me/x-$5/y/sglang-s1",
    ]


def test_of_an_edited_file_no_other_arms_are_shown_or_started(ab):
    assert ab("--vary", "a=1,2", "--save", "mm.yaml")[0] == 0
    file = Path("mm.yaml")
    file.write_text(file.read_text().replace("- 1\n", "- 1\n- 2\n"))
    assert ab("--vary", "a=1,2", "--save", "mm.yaml")[0] == 0
    for start in ((), ("--start",)):
        code, said = ab("--vary", "a=5,6", "--save", "mm.yaml", *start)
        assert code == 1 and "other arms or values than this command asks for (1, 2)" in said, said
        assert "start those by `rolloutbench run mm.yaml`" in said and "main_ppo" not in said, said


def test_of_a_value_variables_are_expanded_where_the_script_runs_and_nothing_else(ab, tmp_path):
    given = '/s/$USER/${LATER}/`id`/$(id)/${trainer.name}/"$5"; id/{run}'
    code, said = ab("--vary", "e=vllm,sglang", "--set", f"out={given}", script="python3 train.py e=vllm out=x\n")
    assert code == 0 and "a command in a value is text and does not run" in said, said
    (out,) = (one for one in argv_of("vllm-s0", tmp_path) if one.startswith("out="))
    assert out == 'out=/s/me/on-the-node/`id`/$(id)/${trainer.name}/"$5"; id/vllm-s0'


def test_a_variable_in_the_environment_is_expanded_on_the_node(ab, tmp_path, monkeypatch):
    assert (
        ab("--vary", "e=vllm,sglang", "--set", "OUT=/s/$USER/${LATER}$NONE/{run}", script="python3 t.py e=vllm\n")[0]
        == 0
    )
    plan = load_plan(yaml.safe_load(Path("run-ab.yaml").read_text()))
    spec, run = plan.runs["vllm-s0"].spec, tmp_path / plan.folder / "runs" / "vllm-s0"
    assert spec["trainer_args"]["environment"] == {"OUT": "/s/$USER/${LATER}$NONE/vllm-s0"}
    keep(spec, run)
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("LATER", "node")
    (run / "attempts" / "1").mkdir(parents=True)
    assert prepared(spec, run / "attempts" / "1")[2]["OUT"] == "/s/me/node/vllm-s0"


def test_what_somebody_has_edited_is_kept(ab):
    arguments = ("--vary", "engine=vllm,sglang", "--partition", "a100")
    assert ab(*arguments, script=SBATCH)[0] == 0
    profile, yaml_file = Path("profiles/run-ab/config.yaml"), Path("run-ab.yaml")
    written = profile.read_text(), yaml_file.read_text()
    profile.write_text(
        written[0].replace("runtime: 480", "runtime: 600").replace("cpus_per_task: 64", "cpus_per_task: 48")
    )
    yaml_file.write_text(written[1].replace("- 1\n", "- 1\n- 2\n"))
    mine = profile.read_text(), yaml_file.read_text()
    code, said = ab(*arguments)
    assert code == 0 and (profile.read_text(), yaml_file.read_text()) == mine, said
    (line,) = (one for one in said.splitlines() if one.startswith("kept profiles/run-ab/config.yaml"))
    assert (
        "cpus_per_task: 48 -> cpus_per_task: 64, runtime: 600 -> runtime: 480; rm profiles/run-ab/config.yaml" in line
    )
    assert "kept run-ab.yaml" in said and "6 runs, in this order" in said, "the runs are those of the file"
    profile.unlink()
    assert "wrote profiles/run-ab/config.yaml" in ab(*arguments)[1] and profile.read_text() == written[0]
    flags = ("--vary", "rollout.name=vllm,sglang", "--partition", "a100", "--save", "other.yaml")
    assert "no #SBATCH line has runtime, and a profile needs it" in ab(*flags, script=SCRIPT, name="plain.sh")[1]
    # A script that requests more is written into a file that nobody has edited.
    Path("run.sh").write_text(SBATCH.replace("08:00:00", "09:00:00"))
    assert ab(*arguments)[0] == 0 and "runtime: 540" in profile.read_text()


@pytest.mark.full("a whole workflow by snakemake: half a minute")
def test_one_command_leads_from_a_script_to_a_verdict(tmp_path):
    program(tmp_path / "bin" / "python3")
    (tmp_path / "console").write_text(CONSOLE)
    (tmp_path / "console-sglang").write_text((FORMATS / "verl-console-sglang-0.log").read_text())
    (tmp_path / "run.sh").write_text(SCRIPT)
    env = {**os.environ, "BENCH": str(tmp_path), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    command = [str(Path(sys.executable).with_name("rolloutbench")), "ab", "run.sh", "--seeds", "1", "--start"]
    done = run_patiently([*command, "--vary", "rollout.name=vllm,sglang"], 300, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    results = tmp_path / "results" / "run-ab"
    (arm,) = json.loads((results / "verdict.json").read_text())["arms"]
    assert (arm["arm"], arm["baseline"], arm["steps"]) == ("sglang", "vllm", [5, 5])
    calls = [line.partition(" ")[2] for line in (tmp_path / "calls").read_text().splitlines()]
    words = ["-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "trainer.resume_mode=disable"]
    assert [sorted(one.split()) for one in calls] == [
        sorted([*words, f"rollout.name={engine}", f"trainer.default_local_dir=checkpoints/run-ab/{engine}-s0"])
        for engine in ("vllm", "sglang")
    ]
    report, preflight = (results / "report.html").read_text(), (results / "preflight.json").read_text()
    assert "are not hashed" in report and "import.batch_size" not in report
    assert "wandb's folder has them" in preflight and "arms.vllm.stack" not in preflight
    published = [file for file in results.rglob("*") if file.suffix in (".html", ".json", ".md", ".csv", ".parquet")]
    assert not [file for file in published if b"0123456789abcdef01234567" in file.read_bytes()]
    again = subprocess.run(
        [Path(sys.executable).with_name("rolloutbench"), "status", "run-ab.yaml"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "2 finished of 2 runs" in again.stdout


@pytest.mark.full("two whole workflows by snakemake: a minute")
def test_after_an_edit_of_the_script_new_runs_are_made_checked_and_reported(tmp_path):
    program(tmp_path / "bin" / "python3")
    (tmp_path / "console").write_text(CONSOLE)
    (tmp_path / "console-sglang").write_text((FORMATS / "verl-console-sglang-0.log").read_text())
    env = {**os.environ, "BENCH": str(tmp_path), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    results = tmp_path / "results" / "run-ab"

    def command(*words):
        done = run_patiently([str(Path(sys.executable).with_name("rolloutbench")), *words], 300, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    fingerprints = []
    for script in (SCRIPT, SCRIPT + "# a comment\n"):
        (tmp_path / "run.sh").write_text(script)
        command("ab", "run.sh", "--seeds", "1", "--vary", "rollout.name=vllm,sglang")
        command("run", "run-ab.yaml")
        plan = json.loads((results / "plan.json").read_text())
        done = {run: results / "runs" / run / "done.json" for run in plan["runs"]}
        assert {run: json.loads(file.read_text())["fingerprint"] for run, file in done.items()} == plan["fingerprints"]
        assert plan["fingerprint"] not in fingerprints
        fingerprints.append(plan["fingerprint"])
        reported = (results / "report.html").stat().st_mtime_ns
        assert all(file.stat().st_mtime_ns < reported for file in done.values())
        made = (results / "checked.json").stat().st_mtime_ns
        assert made > (tmp_path / "run.sh").stat().st_mtime_ns, "an edited script is checked before it trains"
    assert len((tmp_path / "calls").read_text().splitlines()) == 4
    assert "Nothing to be done" in command("run", "run-ab.yaml")
