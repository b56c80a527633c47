"""A training job's request is read in any form in which people write it; what cannot work is refused."""

import re
import shlex
from pathlib import Path

import pytest

from workflow.head.train_rule import require_requests
from workflow.launch_scripts.script import keys_of, options_of_script
from workflow.slurm.request import read_request, sbatch_options
from workflow.slurm.sbatch import megabytes_of, minutes_of
from workflow.slurm.site import Site, read_site

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"slurm_partition": "h100", "gres": "gpu:h100:8", "cpus_per_task": "64", "runtime": "20h", "mem_mb": "1500000"}


def told(on_slurm=True, **given):
    """Everything that is wrong with a request."""
    return "\n".join(map(str, read_request(GOOD | given, on_slurm=on_slurm).errors))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"runtime": "72000"}, "runtime 72000 min is 50 days; did YAML read 20:00:00? Write 20h or 1200 under set-res"),
        ({"runtime": "20:00"}, "is 20 minutes for Slurm, and may mean 20 hours; write 20m or 20h"),
        ({"runtime": "soon"}, "runtime 'soon' is not a time; write minutes (1200), 20h or 1-00:00:00"),
        ({"runtime": "attempt * 600"}, "runtime 'attempt * 600' is not a time; write minutes"),
        ({"runtime": ""}, "no runtime, the walltime of one job; write runtime: 20h (or minutes) under set-resources"),
        ({"runtime": "1"}, "runtime must be at least twice stop_grace_s"),
        ({"slurm_partition": ""}, "no partition to train in; set slurm_partition under set-resources: train:"),
        ({"cpus_per_task": "many"}, "cpus_per_task 'many' is not a whole number above 0"),
        ({"hang_factor": "-1"}, "hang_factor '-1' is not a number of 0 or more"),
        ({"mem_mb": "much"}, "mem_mb 'much' is not a size; write MB (1500000), 1500GB or 1500GiB"),
        ({"mem_mb": "f(wildcards)"}, "mem_mb 'f(wildcards)' is not a size"),
        ({"mem": "1G"}, "train: has no key mem; did you mean mem_mb? Correct it under set-resources: train:"),
        ({"gres": "--gres=gpu:8"}, "gres '--gres=gpu:8' is not Slurm's syntax, gpu[:type][:number]; write gpu:8 "),
        ({"gres": "gpu:h100:many"}, "is not Slurm's syntax"),
        ({"account": "x"}, "train: has no key account; did you mean slurm_account? Correct it under set-resources: tr"),
        ({"gpus": "x"}, "train: has no key gpus; did you mean gres? Correct it under set-resources: train:"),
        ({"slurm_extra": "a100 --exclusive"}, "slurm_extra: 'a100' is not --name or --name=value"),
        ({"slurm_extra": "--comment='open"}, "cannot be read (No closing quotation)"),
        ({"slurm_extra": "--comment=$'a\nb'"}, "is not --name"),
        ({"slurm_extra": "--qos=b", "qos": "a"}, "slurm_extra has --qos=b, and qos is 'a'; keep one"),
        ({"slurm_extra": "--time=2:00:00"}, "slurm_extra has --time=2:00:00, and runtime is '20h'; keep one"),
    ],
)
def test_what_cannot_work_is_told_with_what_to_write(given, says):
    """What Snakemake would compute, too: each training has one attempt there; its launcher retries."""
    assert says in told(**given)
    if given.keys() & {"account", "gpus"}:
        assert says in told(on_slurm=False, **given), "on this machine, too"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("20h", 1200), ("1.5d", 2160), ("2h30m", 150), ("30s", 1), ("1-00:00:00", 1440), ("0-20:30", 1230)],
)
def test_a_time_is_read_as_people_and_slurm_write_it(text, minutes):
    assert minutes_of(text) == minutes


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("1500000", 1500000), ("1500G", 1500000), ("800GB", 800000), ("1.5T", 1500000), ("1GiB", 1024), ("500 MB", 500)],
)
def test_memory_is_read_with_its_unit(text, megabytes):
    assert megabytes_of(text) == megabytes
    assert read_request({"mem_mb": text}, on_slurm=False).site["mem_mb"] == megabytes


@pytest.mark.parametrize(
    ("option", "submitted"),
    [
        ("--mem=4G", "4096M"),
        ("--mem=1900G", "1945600M"),
        ("--mem=64GB", "65536M"),
        ("--mem=64Gb", "65536M"),
        ("--mem 2T", "2097152M"),
        ("--mem=5000", "5000M"),
        ("--mem=5000M", "5000M"),
        ("--mem=1500K", "2M"),
        ("--gres=gpu:8 --mem-per-gpu=64G", "524288M"),
    ],
)
def test_the_memory_of_a_script_is_what_sbatch_gets(option, submitted):
    """sbatch's K, M, G and T are powers of 1024, in what a script asks and in what is submitted."""
    found, left = keys_of(options_of_script(f"#!/bin/bash\n#SBATCH {option}\nsrun train\n"))
    for given in (found, {"slurm_extra": option}):
        request = read_request({"slurm_partition": "h100", "runtime": "60", **given})
        assert not request.errors and sbatch_options(request.site)["mem"] == submitted, given
    assert not left


def test_memory_of_each_cpu_stays_sbatchs_own_option():
    assert extra("--mem-per-cpu=4G", mem_mb="0")["mem-per-cpu"] == "4G"


def test_a_good_request_is_read():
    request = read_request(GOOD | {"setup": "profiles/slurm/setup.sh", "qos": "high"})
    assert not request.errors
    assert (request.cpus, request.gpus, request.nodes, request.runtime_min) == (64, 8, 1, 1200)
    assert request.site["setup"] == str(ROOT / "profiles/slurm/setup.sh")
    assert sbatch_options(request.site) == {"partition": "h100", "gres": "gpu:h100:8", "qos": "high", "mem": "1500000M"}


def test_a_setup_script_of_windows_is_refused(tmp_path):
    setup = tmp_path / "set up.sh"
    setup.write_bytes(b"export FOO=1\r\nmodule load cuda\r\n")
    assert "has Windows line ends (CRLF)" in (said := told(setup=str(setup)))
    assert f"convert it: sed -i 's/\\r$//' {shlex.quote(str(setup))}" in said
    setup.write_bytes(b"export FOO=1\n")
    assert not told(setup=str(setup))


# slurm_extra --------------------------------------------------------------------------------------------------------


def extra(text, **given):
    request = read_request(GOOD | given | {"slurm_extra": text})
    assert not request.errors, request.errors
    return sbatch_options(request.site)


def test_options_of_sbatch_are_carried():
    text = '--exclusive --comment="it\'s a # of 100%" --nice 100 --licenses=foo:2 --exclusive=user --mail-type=END'
    found = extra(text)
    assert found.items() >= {"comment": "it's a # of 100%", "nice": "100", "licenses": "foo:2"}.items()
    assert (found["exclusive"], found["mail-type"]) == ("user", "END")
    assert extra("--exclusive")["exclusive"] is True


def test_options_with_a_key_of_their_own_become_that_key():
    request = read_request(GOOD | {"slurm_extra": "--qos high --constraint='a100&ib' --account=lab --gres=gpu:h100:8"})
    assert not request.errors
    site = request.site
    assert (site["qos"], site["constraint"], site["account"], "extra" in site) == ("high", "a100&ib", "lab", False)


FORMS = "--time=20:00:00 --mem=1000M -N 2 --gpus-per-node=h100:8 -c 64 --qos=high --exclusive"


def test_a_script_and_slurm_extra_are_read_alike():
    of_script, left = keys_of(options_of_script(f"#!/bin/bash\n#SBATCH {FORMS} -J name\nsrun train\n"))
    assert [one.what for one in left] == ["--job-name=name"]
    requests = [
        read_request({"slurm_partition": "h100", **given})
        for given in (of_script, {"slurm_extra": FORMS}, {"slurm_extra": FORMS, "mem_mb": "0", "cpus_per_task": "64"})
    ]
    assert requests[0] == requests[1] == requests[2] and not requests[0].errors
    read = requests[0]
    assert (read.runtime_min, read.nodes, read.gpus, read.cpus, read.site["mem_mb"]) == (1200, 2, 8, 64, 1000)
    assert sbatch_options(read.site)["exclusive"] is True


@pytest.mark.parametrize("gpus", ["--gres=gpu:h100:8", "--gpus=16", "--gpus-per-task=1 --ntasks-per-node=8"])
def test_cpus_and_memory_for_a_gpu_are_those_of_its_node(gpus):
    text = f"#SBATCH -N 2 {gpus} --cpus-per-gpu=8 --mem-per-gpu=100M\n"
    read, left = keys_of(options_of_script(text))
    assert (read["cpus_per_task"], read["mem_mb"], left) == ("64", "800", [])


REFUSED = """
output=x error=x array=0-3 wrap=true requeue no-requeue job-name=x dependency=singleton signal=USR1 ntasks=2 chdir=/
ntasks-per-node=8 export=NONE clusters=a mem=0 time=soon gpus-per-socket=1 parsable test-only no-kill
open-mode=truncate depend=1 out=x no-req get-user-env cpus-per-gpu=8 mem-per-gpu=1G
"""


@pytest.mark.parametrize("option", REFUSED.split())
def test_options_that_a_run_depends_on_are_refused_with_the_reason(option):
    said = told(slurm_extra=f"--exclusive --{option}")
    assert re.search(rf"slurm_extra cannot have --{option.partition('=')[0]}\S*: .+; remove it under", said), said


# Against the experiment ---------------------------------------------------------------------------------------------


def spec(**more):
    workload = {"gpus_per_node": 8, "nodes": 1} | more.pop("workload", {})
    return {"arm": "vllm", "trainer": "verl", "ray": True, "env": {}, "workload": workload, **more}


def site(**train):
    good = GOOD | {"private_nodes": "true"} | train
    return Site({key: value for key, value in good.items() if value != "-"}, Path("p"), True)


def test_a_request_that_fits_passes():
    require_requests(site(), [spec(), spec(workload={"gpus_per_node": 4})])
    require_requests(site(gres="-"), [spec(), spec(workload={"gpus_per_node": 4})])
    require_requests(Site({"private_nodes": "true"}), [spec()])


def test_keys_of_earlier_releases_are_named_once_and_ignored(tmp_path, capsys):
    text = (
        "executor: slurm\nset-resources:\n  train: {slurm_partition: h100, runtime: 60, pair: node, node_speed_s: 60}\n"
    )
    (tmp_path / "config.yaml").write_text(text)
    assert read_site(tmp_path).request().errors == ()
    told = capsys.readouterr().err
    assert told.count("no longer used") == 2 and "train: pair is no longer used: give all arms one nodelist" in told
