"""A user's script on a real Slurm: under the same promises as every trainer."""

import json

from .runs import SlurmScript, preempt

WAIT_AFTER_2 = {"STAND_IN_WAIT": "2"}


class WithSteps(SlurmScript):
    """Its script first starts steps of its own, as batch scripts do."""

    setup = (
        'srun --ntasks=1 hostname >> "$ROLLOUTBENCH_NOTES"\n'
        'echo "$SLURM_NNODES $SLURM_NTASKS $SLURM_JOB_NODELIST $PWD" >> "$ROLLOUTBENCH_NOTES"\n'
    )


def test_a_script_is_submitted_once_a_killed_head_attaches_and_a_preemption_lets_it_continue(run):
    one = run(kind=WithSteps, steps=6, env=WAIT_AFTER_2)
    one.spec["env"]["ROLLOUTBENCH_NOTES"] = str(one.folder / "notes")
    head = one.start(2)
    head.kill()
    head.wait()
    again = one.start()
    one.wait_for_words(again, f"attaching to Slurm job {one.job_id()}")
    preempt(one)
    one.release()
    one.finish(again)
    assert f"submitted as Slurm job {one.job_id()}" in one.said(head)
    assert one.submitted() == 1, "requeued, not submitted anew"
    done = one.done()
    assert (done["attempt"], done["first_step"], done["last_step"]) == (2, 1, 6), "all lives count"
    first, second, *_ = (one.folder / "notes").read_text().splitlines()
    node = one.read("attempts", "1", "attempt.json")["slurm"]["nodes"]
    assert second == f"1 1 {node} {one.folder / 'scripts'}" and first
    assert "engine=sglang" in next((one.run / "attempts" / "1").glob("*.sh")).read_text()


def test_a_script_on_two_nodes_starts_its_tasks_on_both(run):
    class OnTwo(SlurmScript):
        setup = (
            "srun bash -c 'echo \"$SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME with $CUDA_VISIBLE_DEVICES\"' "
            '>> "$ROLLOUTBENCH_NOTES"\n'
        )

    one = run(kind=OnTwo, steps=3, options=("nodes=2",))
    one.spec["env"]["ROLLOUTBENCH_NOTES"] = str(one.folder / "notes")
    one.spec["workload"]["nodes"] = 2
    one.spec["trainer_args"] |= {"nodes": 2, "tasks_per_node": 2}
    one.finish(one.start())
    found = sorted((one.folder / "notes").read_text().splitlines())
    gpus = ",".join(map(str, range(8)))
    assert found == [f"{task} of 4 on gpu{1 + task // 2} with {gpus}" for task in range(4)]
    assert json.loads((one.run / "done.json").read_text())["last_step"] == 3
