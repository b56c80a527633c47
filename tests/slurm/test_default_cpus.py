"""A job whose CPUs nobody requests has those that Slurm gives by default."""


def test_a_job_has_the_cpus_that_slurm_gives(run):
    one = run(steps=2, options=("cpus_per_task=0",))
    done = one.launch()
    assert done.returncode == 0, one.state()
    assert one.read("attempts", "1", "attempt.json")["cpus"] == 1
    assert one.done()["env_threads"] == "1"
