"""`rolloutbench check` of a site: each check both ways, by fake commands on PATH; one that hangs stops no other."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import UserError
from workflow.checks import SiteCheck, Unchecked, machine_checks, stack_checks
from workflow.checks.site_checks import start_checks
from workflow.checks.slurm_checks import SlurmSite, slurm_checks
from workflow.checks.stack_checks import Gpus
from workflow.cli import main
from workflow.slurm.site import Site, read_site
from workflow.stacks import load_stack
from workflow.stacks.uv import configured_uv

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


def read(profile=ROOT / "profiles" / "slurm"):
    return read_site(profile)


def checked(request=None, *runs, required=True):
    """What Slurm's checks find: what passed, the findings by their code, and what was not checked."""
    request = request or Site()
    site = SlurmSite(request if request.on_slurm else None, runs)
    found = start_checks(slurm_checks(request, site, required))()
    return found.passed, {one.code: one for one in found.findings}, "; ".join(found.unchecked)


def test_a_slurm_that_is_as_it_should_be_passes(slurm):
    passed, findings, unchecked = checked(read())
    assert [*passed] == ["request", "Slurm", "sbatch", "limits", "TaskPlugin"] and not findings and not unchecked
    assert passed["Slurm"] == "23.11.4, cluster big; 0 jobs of yours in the queue"
    assert passed["limits"] == "MaxJobs 200, MaxSubmit 400"
    assert passed["request"] == f"11 keys of train: in {ROOT / 'profiles' / 'slurm'}"
    assert passed["sbatch"] == "--test-only accepts a training job, a job of the light rules"


@pytest.mark.parametrize(
    ("program", "text", "code", "what", "change"),
    [
        ("sacctmgr", "lab|me|4|10|||\n", "limits", "MaxSubmit 10", "train_slots=10"),
        ("scontrol", CONFIG.replace("cgroup,task/affinity", "none"), "task-plugin", "share its CPUs", "cgroup"),
    ],
)
def test_each_fault_of_a_site_is_named_with_its_remedy(slurm, program, text, code, what, change):
    slurm(program, text)
    one = checked(read())[1][code]
    assert one.level == "odd" and what in one.what and change in one.change, one


def test_launchers_leave_a_place_for_the_other_jobs(slurm, tmp_path):
    """Snakemake counts a launcher, which waits for days, among its `jobs`."""
    text = (ROOT / "profiles" / "slurm" / "config.yaml").read_text()
    for slots, levels in (("64", []), ("200", ["odd"])):
        (tmp_path / "config.yaml").write_text(text.replace("train_slots=64", f"train_slots={slots}"))
        found = checked(read(tmp_path))[1]
        assert [one.level for one in found.values() if one.code == "train-slots"] == levels
    assert "jobs: 100 counts launchers" in found["train-slots"].what and "set jobs above" in found["train-slots"].change


def test_a_slurm_that_does_not_answer_is_said_once(slurm):
    for name in ("squeue", "scontrol", "sacct", "sacctmgr", "sbatch"):
        lookup = f"{name}: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        slurm(name, f"{lookup}{name}: fatal: Could not establish a configuration source", 1)
    _, findings, unchecked = checked(read())
    assert findings["slurm"].level == "lacking"
    assert findings["slurm"].what == "slurmctld does not answer: Could not establish a configuration source"
    assert unchecked == "sbatch, limits, TaskPlugin: Slurm does not answer (Could not establish a configuration source)"
    assert checked(required=False)[1]["slurm"].level == "odd", "no profile needs it"
    assert not checked()[1] and not checked()[2], "an experiment that does not submit asks no Slurm"


def test_a_package_index_that_does_not_answer_is_lacking(monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    (one,) = machine_checks.package_index(configured_uv())
    assert (one.level, one.code) == ("lacking", "package-index") and "does not answer: " in one.what
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert machine_checks.package_index(configured_uv()).startswith("not asked, as pip's settings say")


def test_a_profile_that_submits_needs_a_slurm(fake):
    one = checked(with_train(), RUN)[1]["slurm"]
    assert one.level == "lacking" and one.what == "p submits to Slurm, and none of its programs is on PATH"


RUN = {"arm": "vllm", "trainer": "verl", "ray": True, "env": {}, "workload": {"gpus_per_node": 8, "nodes": 1}}


def with_train(**train):
    """A profile for Slurm with these keys for training."""
    good = {"slurm_partition": "h100", "gres": "gpu:h100:8", "cpus_per_task": "64", "runtime": "20h"}
    good["private_nodes"] = "true"
    return Site({key: text for key, text in (good | train).items() if text != "-"}, Path("p"), True)


@pytest.mark.parametrize(
    ("train", "what"),
    [
        ({"runtime": "-"}, "no runtime"),
        ({"gres": "-", "cpus_per_task": "8"}, "verl reserves 33 CPUs"),
        ({"nodes": "2"}, "needs 1 node per run (workload.nodes), but the profile requests 2 from Slurm"),
    ],
)
def test_a_request_that_can_never_run_fails(slurm, train, what):
    one = checked(with_train(**train), RUN | {"least_cpus": 33})[1]["slurm-request"]
    assert (one.level, one.arms) == ("impossible", ("vllm",)) and what in one.what and one.change, one
    assert not checked(with_train(), RUN | {"least_cpus": 33})[1]


@pytest.mark.parametrize("key", ["mem_mb", "mem"])
def test_a_light_job_is_asked_for_with_its_memory(slurm, tmp_path, key):
    executable(tmp_path / "bin" / "sbatch", f'echo "$@" >> {tmp_path}/asked')
    checked(replace(with_train(), light={"slurm_partition": "cpu", key: "16GB"}), RUN)
    assert "--mem=16000M" in (tmp_path / "asked").read_text().splitlines()[-1]


def test_what_sbatch_refuses_is_told_in_its_words_with_the_key(slurm):
    slurm("sbatch", "sbatch: error: Batch job submission failed: Invalid qos specification\n", 1)
    passed, found, _ = checked(with_train(qos="high"), RUN)
    one = found["slurm-refuses"]
    assert (
        one.level == "impossible" and one.what == "sbatch refuses a job of the light rules: Invalid qos specification"
    )
    assert "sbatch" not in passed and one.change.startswith("correct qos under ")
    slurm("sbatch", "sbatch: error: Job violates accounting/QOS policy (job submit limit)\n", 1)
    assert "slurm-refuses" not in checked(with_train(), RUN)[1], "other jobs will end"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("lab|me|||10:00:00|||\n", "runtime requests 1200 min, and MaxWall of account lab is 10:00:00"),
        ("lab|me|||||gres/gpu=4|\n", "a job requests gres/gpu=8, and MaxTRES of account lab is gres/gpu=4"),
        ("lab|me|||||node=1,mem=1G|\n", "a job requests mem=2000, and MaxTRES of account lab is mem=1G"),
    ],
)
def test_the_limits_of_an_account_are_compared_with_the_request(slurm, text, what):
    slurm("sacctmgr", text)
    one = checked(with_train(mem_mb="2000"), RUN)[1]["limits"]
    assert one.level == "lacking" and what in one.what and "another slurm_account or qos" in one.change, one
    assert "limits" not in checked(with_train(slurm_account="other"), RUN)[1], "another account's limits"


def lacks(outcome):
    """What a check finds lacking."""
    if isinstance(outcome, str):
        return ""
    (one,) = outcome
    assert one.level == "lacking" and one.change
    return f"{one.what}; {one.change}"


def test_the_folders_and_interfaces_of_a_training(tmp_path, fake):
    (tmp_path / "file").touch()
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "new" / "hub")}
    assert not lacks(machine_checks.folders(home))
    found = lacks(machine_checks.folders(home | {"HF_HOME": str(tmp_path / "file" / "hub")}))
    assert found.startswith("cannot be written: HF_HOME (") and "shared disk" in found
    assert "never expanded" in lacks(machine_checks.folders({"HF_HOME": "/scratch/$USER/hf"}))
    assert "TMPDIR (/proc" in lacks(machine_checks.folders({"TMPDIR": "/proc"}))
    local = SlurmSite(None)
    for value in ("lo", "l", "=lo", "^docker", "ib0,lo"):
        assert not lacks(machine_checks.interfaces({"NCCL_SOCKET_IFNAME": value}, local)), value
    for name, value in (("NCCL", "ib7"), ("NCCL", "=l"), ("GLOO", "l"), ("GLOO", "ib7")):
        found = lacks(machine_checks.interfaces({f"{name}_SOCKET_IFNAME": value}, local))
        assert f"{name}_SOCKET_IFNAME={value}, but " in found and "lo" in found
    fake("squeue")
    wrong = {"NCCL_SOCKET_IFNAME": "ib7"}
    with pytest.raises(Unchecked, match="runs train on other nodes"):  # a login node has other ones
        machine_checks.interfaces(wrong, local)
    assert lacks(machine_checks.interfaces(wrong | {"SLURM_JOB_ID": "1"}, local))


SMI = "NVIDIA H100 80GB HBM3, 81559, {driver}, {capability}\n"


@pytest.mark.parametrize(("driver", "lacking"), [("580.65.06", ""), ("550.54.15", "too old for CUDA 13.0")])
def test_the_driver_and_the_gpu_against_each_stack(fake, driver, lacking):
    fake("nvidia-smi", SMI.format(driver=driver, capability="9.0") * 2)
    gpus, both = Gpus(), [load_stack("verl04-vllm"), load_stack("verl09-vllm")]
    assert stack_checks.gpu(gpus, both) == f"2 x NVIDIA H100 80GB HBM3 (80 GiB), driver {driver}"
    assert lacking in lacks(stack_checks.drivers(gpus, both, True))
    assert not lacks(stack_checks.drivers(gpus, both[:1], True))


def test_locks(tmp_path, monkeypatch):
    assert not lacks(machine_checks.locks(tmp_path))
    taken = machine_checks.try_lock
    monkeypatch.setattr(machine_checks, "try_lock", lambda path: taken(path.with_name("x" + os.urandom(4).hex())))
    assert lacks(machine_checks.locks(tmp_path))
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_check_that_fails_or_hangs_stops_no_other():
    never = threading.Event()

    def broken():
        raise UserError("no such thing")

    def hanging():
        never.wait()
        return ""

    checks = [SiteCheck("broken", broken), SiteCheck("hanging", hanging), SiteCheck("well", lambda: "all is well")]
    found = start_checks(checks, patience_s=0.3)()
    never.set()
    assert found.unchecked == ["broken: no such thing", "hanging: no answer within 0.3 s; try again"]
    assert found.passed == {"well": "all is well"} and not found.findings


@pytest.fixture
def site_folder(fake, tmp_path, monkeypatch):
    """A folder with one experiment for GPUs, no network and no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(stack_checks, "driver_version", lambda: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (ROOT / "experiments" / "camino-2025-equal.yaml").read_text()
    (tmp_path / "gpu.yaml").write_text(text)
    return tmp_path


def test_the_command_ends_with_1_only_where_something_is_lacking_or_impossible(site_folder, capfd):
    assert main(["check", "gpu.yaml", "--json"]) == 1, "no GPU, no nvcc"
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert {"machine", "ports", "stack-verl09-vllm", "stack-verl09-sglang", "inputs"} <= {
        one["code"] for one in found["findings"] if one["level"] == "lacking"
    }
    assert [one["run"] for one in found["runs"]] and found["ledger"] and "locks" in found["passed"]
    count = sum(one["level"] == "lacking" for one in found["findings"])
    assert err.endswith(f"cannot start here as it is: {count} lacking (above, each with its remedy)\n")
    assert main(["check"]) == 0, "no experiment asks for a stack: what they lack is odd"
    out = capfd.readouterr().out
    assert "lacking: nothing" in out and "[stack-verl09-vllm]" in out
    assert main(["check", "--profile", "nosuch"]) == 1
    assert "no such profile: nosuch" in capfd.readouterr().err
