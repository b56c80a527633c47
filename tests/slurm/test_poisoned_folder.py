"""On a node, too: Snakemake starts itself there, and submitit a job, in the folder where the user stood."""

import yaml

from ..poisoned import ROOT, Folder, script_of
from ..programs import executable


def test_no_job_imports_a_module_of_the_folder(cluster, tmp_path):
    folder = Folder(tmp_path / "theirs")
    profile = yaml.safe_load((ROOT / "profiles" / "slurm" / "config.yaml").read_text(encoding="utf-8"))
    profile["set-resources"]["train"] |= {"cpus_per_task": 2, "mem_mb": 8000, "stop_grace_s": 60}
    profile |= {"slurm-init-seconds-before-status-checks": 2, "seconds-between-status-checks": 2}
    executable(tmp_path / "profile" / "config.yaml", yaml.safe_dump(profile))
    # As in test_training.py.
    srun = executable(tmp_path / "bin" / "srun", f'export SLURM_CONF={cluster.conf}\nexec /usr/bin/srun "$@"')
    env = cluster.env | {"PATH": f"{srun.parent}:{cluster.env['PATH']}", "ROLLOUTBENCH_SLURM_EVERY_S": "3"}
    done = folder.snakemake(script_of(tmp_path / "project"), "--profile", str(tmp_path / "profile"), **env)
    assert (folder.imported(), done.returncode) == ([], 0), done.stdout + done.stderr
    assert "submitted with SLURM jobid" in done.stderr, "light rules were jobs, too"
