"""`rolloutbench doctor`: each check both ways, by fake commands on PATH; one that fails or hangs stops no other."""

import json
import os
import threading
from pathlib import Path

import pytest

from common.errors import UserError
from workflow.cli import main
from workflow.doctor import DoctorCheck, machine_checks, passed, slurm_checks, stack_checks
from workflow.doctor.diagnosis import lines_of, run_checks
from workflow.doctor.slurm_checks import SlurmSite
from workflow.doctor.stack_checks import Gpus
from workflow.slurm.site import Site, read_site
from workflow.stacks import load_stack

from .programs import executable

ROOT = Path(__file__).resolve().parents[1]

CONFIG = """\
Configuration data as of 2025-01-01T00:00:00
ClusterName             = big
SLURM_VERSION           = 23.11.4
TaskPlugin              = task/cgroup,task/affinity
"""
FIELDS = ("JOBID", "STATE", "NODELIST", "TIME_LEFT", "START_TIME", "REASON", "NAME")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a program on PATH that prints a text and ends with a code; the real ones of its kind are not on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name, text="", code=0):
        said = folder / f"{name}.txt"
        said.write_text(text)
        executable(folder / name, f'/bin/cat "{said}"\nexit {code}')

    return put


@pytest.fixture
def slurm(fake):
    """A Slurm that is as it should be; what is put on PATH again replaces an answer."""
    for name in ("sbatch", "scancel", "srun"):
        fake(name)
    fake("squeue", "\x1f".join(FIELDS) + "\x1e\n")
    fake("scontrol", CONFIG)
    fake("sacctmgr", "lab|me|200|400|||\n")
    fake("sacct", "\x1f".join(("JobIDRaw", "State", "ExitCode", "NodeList", "JobName")) + "\n")
    return fake


def site(profile=ROOT / "profiles" / "slurm"):
    request = read_site(profile)
    return SlurmSite(request if request.on_slurm else None)


def test_a_slurm_that_is_as_it_should_be_passes(slurm):
    results = list(run_checks(slurm_checks.slurm_checks(site())))
    assert [(one.name, one.level) for one in results] == [
        (name, "passed") for name in (*("Slurm", "request", "sbatch", "limits", "TaskPlugin"),)
    ], [one.found for one in results]
    shown = {one.name: one.found for one in results}
    assert shown["Slurm"] == "23.11.4, cluster big; 0 jobs of yours in the queue"
    assert shown["limits"] == "MaxJobs 200, MaxSubmit 400"
    assert shown["request"] == f"11 keys of train: in {ROOT / 'profiles' / 'slurm'}"
    assert shown["sbatch"] == "--test-only accepts a training job, a job of the light rules"


@pytest.mark.parametrize(
    ("program", "text", "name", "level", "found", "remedy"),
    [
        ("sacctmgr", "lab|me|4|10|||\n", "limits", "warning", "MaxSubmit 10", "train_slots=10"),
        (
            "scontrol",
            CONFIG.replace("cgroup,task/affinity", "none"),
            "TaskPlugin",
            "warning",
            "share its CPUs",
            "cgroup",
        ),
    ],
)
def test_each_fault_of_a_site_is_named_with_its_remedy(slurm, program, text, name, level, found, remedy):
    slurm(program, text)
    one = next(one for one in run_checks(slurm_checks.slurm_checks(site())) if one.name == name)
    assert one.level == level and found in one.found and remedy in one.remedy + one.found, one


def test_launchers_leave_a_place_for_the_other_jobs(slurm, tmp_path):
    """Snakemake counts a launcher, which waits for days, among its `jobs`."""
    text = (ROOT / "profiles" / "slurm" / "config.yaml").read_text()
    for slots, level in (("64", "passed"), ("200", "warning")):
        (tmp_path / "config.yaml").write_text(text.replace("train_slots=64", f"train_slots={slots}"))
        one = next(one for one in run_checks(slurm_checks.slurm_checks(site(tmp_path))) if one.name == "request")
        assert one.level == level, one.found
    assert "jobs: 100 counts launchers" in one.found and "set jobs above" in one.remedy


def test_a_slurm_that_does_not_answer_is_said_once(slurm):
    for name in ("squeue", "scontrol", "sacct", "sacctmgr", "sbatch"):
        slurm(name, "Unable to contact slurm controller", 1)
    results = {one.name: one for one in run_checks(slurm_checks.slurm_checks(site()))}
    assert results["Slurm"].level == "failed" and "Unable to contact" in results["Slurm"].found
    assert results["TaskPlugin"].found == "not checked: Slurm does not answer"
    assert results["sbatch"].level == "warning"
    assert results["sbatch"].found == "not asked: Unable to contact slurm controller"
    without = {one.name: one.level for one in run_checks(slurm_checks.slurm_checks(SlurmSite(None)))}
    assert without["Slurm"] == "warning", "no profile needs it"


RUN = {"arm": "vllm", "trainer": "verl", "ray": True, "env": {}, "workload": {"gpus_per_node": 8, "nodes": 1}}


def checked(name, request, *runs):
    """What one of Slurm's checks finds."""
    one = next(one for one in run_checks(slurm_checks.slurm_checks(SlurmSite(request, runs))) if one.name == name)
    return one.level, one.found, one.remedy


def with_train(**train):
    """A profile for Slurm with these keys for training."""
    good = {"slurm_partition": "h100", "gres": "gpu:h100:8", "cpus_per_task": "64", "runtime": "20h"}
    good["private_nodes"] = "true"
    return Site({key: text for key, text in (good | train).items() if text != "-"}, Path("p"), True)


@pytest.mark.parametrize(
    ("train", "found"),
    [({"runtime": "-"}, "vllm: no runtime"), ({"gres": "-", "cpus_per_task": "8"}, "verl reserves 33 CPUs")],
)
def test_a_request_that_can_never_run_fails(slurm, train, found):
    level, said, remedy = checked("request", with_train(**train), RUN | {"least_cpus": 33})
    assert level == "failed" and found in said and remedy, said
    assert checked("request", with_train(), RUN | {"least_cpus": 33})[0] == "passed"


def test_what_sbatch_refuses_is_told_in_its_words_with_the_key(slurm):
    slurm("sbatch", "sbatch: error: Batch job submission failed: Invalid qos specification\n", 1)
    level, found, remedy = checked("sbatch", with_train(qos="high"), RUN)
    assert level == "failed" and found.startswith(
        "a training job of vllm: Invalid qos specification; a job of the light"
    )
    assert remedy.startswith("correct qos under set-resources: train: in the profile")
    slurm("sbatch", "sbatch: error: Job violates accounting/QOS policy (job submit limit)\n", 1)
    assert checked("sbatch", with_train(), RUN)[0] == "warning", "other jobs will end"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lab|me|||10:00:00|||\n", "runtime requests 1200 min, and MaxWall of account lab is 10:00:00"),
        ("lab|me|||||gres/gpu=4|\n", "a job requests gres/gpu=8, and MaxTRES of account lab is gres/gpu=4"),
        ("lab|me|||||node=1,mem=1G|\n", "a job requests mem=2000, and MaxTRES of account lab is mem=1G"),
    ],
)
def test_the_limits_of_an_account_are_compared_with_the_request(slurm, text, found):
    slurm("sacctmgr", text)
    level, said, remedy = checked("limits", with_train(mem_mb="2000"), RUN)
    assert level == "failed" and found in said and "another slurm_account or qos" in remedy, said
    assert checked("limits", with_train(slurm_account="other"), RUN)[0] == "passed", "another account's limits"


def test_the_folders_and_interfaces_of_a_training(tmp_path, fake):
    (tmp_path / "file").touch()
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "new" / "hub")}
    assert machine_checks.folders(home)[0] == "passed"
    level, found, remedy = machine_checks.folders(home | {"HF_HOME": str(tmp_path / "file" / "hub")})
    assert level == "failed" and found.startswith("cannot be written: HF_HOME (") and "shared disk" in remedy
    assert "never expanded" in machine_checks.folders({"HF_HOME": "/scratch/$USER/hf"})[1]
    assert "TMPDIR (/proc" in machine_checks.folders({"TMPDIR": "/proc"})[1]
    local = SlurmSite(None)
    for value in ("lo", "l", "=lo", "^docker", "ib0,lo"):
        assert machine_checks.interfaces({"NCCL_SOCKET_IFNAME": value}, local)[0] == "passed", value
    for name, value in (("NCCL", "ib7"), ("NCCL", "=l"), ("GLOO", "l"), ("GLOO", "ib7")):
        level, found, remedy = machine_checks.interfaces({f"{name}_SOCKET_IFNAME": value}, local)
        assert level == "failed" and f"{name}_SOCKET_IFNAME={value}, but " in found and "lo" in found
    fake("squeue")
    wrong = {"NCCL_SOCKET_IFNAME": "ib7"}
    assert machine_checks.interfaces(wrong, local)[0] == "warning", "a login node has other ones"
    assert machine_checks.interfaces(wrong | {"SLURM_JOB_ID": "1"}, local)[0] == "failed"


SMI = "NVIDIA H100 80GB HBM3, 81559, {driver}, {capability}\n"


@pytest.mark.parametrize(
    ("driver", "capability", "levels", "found"),
    [
        ("580.65.06", "9.0", ["passed", "passed"], "driver 580.65.06 runs CUDA 13.0"),
        ("550.54.15", "9.0", ["passed", "failed"], "too old for CUDA 13.0"),
    ],
)
def test_the_driver_and_the_gpu_against_each_stack(fake, driver, capability, levels, found):
    fake("nvidia-smi", SMI.format(driver=driver, capability=capability) * 2)
    gpus = Gpus()
    old, new = load_stack("verl04-vllm"), load_stack("verl09-vllm")
    assert stack_checks.gpu(gpus, [new], True)[1] == f"2 x NVIDIA H100 80GB HBM3 (80 GiB), driver {driver}"
    answers = [stack_checks.gpu_of_stack(gpus, one, True) for one in (old, new)]
    assert [one[0] for one in answers] == levels and found in answers[1][1]


def test_locks_and_renames(tmp_path, monkeypatch):
    assert machine_checks.locks(tmp_path)[0] == machine_checks.rename(tmp_path)[0] == "passed"
    taken = machine_checks.try_lock
    monkeypatch.setattr(machine_checks, "try_lock", lambda path: taken(path.with_name("x" + os.urandom(4).hex())))
    assert machine_checks.locks(tmp_path)[0] == "failed"
    monkeypatch.setattr(machine_checks, "write_text", lambda path, text: path.write_text("old"))
    assert machine_checks.rename(tmp_path)[0] == "failed"
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_check_that_fails_or_hangs_stops_no_other():
    never = threading.Event()

    def broken():
        raise UserError("no such thing")

    def hanging():
        never.wait()
        return passed("")

    checks = [
        DoctorCheck("a", "broken", broken),
        DoctorCheck("a", "hanging", hanging),
        DoctorCheck("b", "well", lambda: passed("all is well " * 20)),
    ]
    results = list(run_checks(checks, patience_s=0.3))
    never.set()
    assert [one.level for one in results] == ["warning", "warning", "passed"]
    assert results[0].found == "could not check: no such thing"
    assert results[1].found == "could not check: no answer within 0.3 s"
    plain, coloured = list(lines_of(results)), list(lines_of(results, colour=True))
    assert plain[-1] == "1 passed, 2 warnings, 0 failed" and max(map(len, "\n".join(plain).splitlines())) <= 80
    assert "\x1b" not in "\n".join(plain) and "\x1b[33m" in "\n".join(coloured)


@pytest.fixture
def site_folder(fake, tmp_path, monkeypatch):
    """A folder with one CPU experiment, no network and no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(stack_checks, "driver_version", lambda: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (ROOT / "experiments" / "camino-2025-equal.yaml").read_text()
    (tmp_path / "gpu.yaml").write_text(text)
    return tmp_path


def test_the_command_ends_with_1_only_where_a_check_has_failed(site_folder, capfd, monkeypatch):
    assert main(["doctor", "gpu.yaml", "--json"]) == 1, "no GPU, no nvcc"
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert answer["failed"] > 0 and answer["failed"] == sum(one["level"] == "failed" for one in answer["checks"])
    assert err.startswith(f"error: {answer['failed']} of {len(answer['checks'])} checks failed")
    assert {one["name"] for one in answer["checks"]} >= {"verl09-vllm", "verl09-sglang", "GPU", "Slurm", "locks"}
    assert main(["doctor"]) == 0, "no experiment asks for a stack: what they lack is a warning"
    assert " 0 failed" in capfd.readouterr().out
    assert main(["doctor", "--profile", "nosuch"]) == 1
    assert "no such profile: nosuch" in capfd.readouterr().err
