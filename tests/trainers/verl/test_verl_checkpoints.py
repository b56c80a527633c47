"""Folders as verl's FSDP checkpoints leave them, whole and broken; a .pt file is a zip archive, and so are these."""

import zipfile

import pytest

from common.errors import UserError
from trainers.verl.driver.checkpoints import TRACKER
from trainers.verl.driver.train import prepared_checkpoints

SHARD = "actor/optim_world_size_2_rank_1.pt"
BREAKS = {
    "no data.pt": lambda at: (at / "data.pt").unlink(),
    "empty data.pt": lambda at: (at / "data.pt").write_bytes(b""),
    "a shard is missing": lambda at: (at / SHARD).unlink(),
    "a shard is cut": lambda at: (at / SHARD).write_bytes((at / SHARD).read_bytes()[:1500]),
    "a rank is missing": lambda at: [path.unlink() for path in at.glob("actor/*_rank_1.pt")],
    "rank 0 was not done": lambda at: [path.unlink() for path in at.glob("actor/**/*config.json")],
    "empty": lambda at: [path.unlink() for path in at.glob("actor/*.*")],
}


def write_archive(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x" * 2000)


def write_checkpoint(folder, step, world_size=2):
    checkpoint = folder / f"global_step_{step}"
    for rank in range(world_size):
        for content in ("model", "optim", "extra_state"):
            write_archive(checkpoint / "actor" / f"{content}_world_size_{world_size}_rank_{rank}.pt")
    (checkpoint / "actor" / "huggingface").mkdir()
    (checkpoint / "actor" / "huggingface" / "config.json").write_text("{}")
    (checkpoint / "actor" / "fsdp_config.json").write_text('{"world_size": 2}')
    write_archive(checkpoint / "data.pt")
    return checkpoint


def prepare(folder, contents=("model", "optimizer", "extra"), mode="sync"):
    """The step that two GPUs resume from, and the steps that are left."""
    loop = {"use_v1": True, "v1": {"trainer_mode": mode}}
    actor = {"strategy": "fsdp2", "checkpoint": {"load_contents": list(contents)}}
    step = prepared_checkpoints({"checkpoint_dir": folder}, {"trainer": loop, "actor_rollout_ref": {"actor": actor}}, 2)
    return step, steps_in(folder)


def steps_in(folder):
    return sorted(int(path.name.removeprefix("global_step_")) for path in folder.glob("global_step_[0-9]*"))


@pytest.mark.parametrize("content", ["20", "", "30", None])
def test_the_newest_is_resumed_from_whatever_verls_file_says(content, tmp_path):
    """And verl does not read it: an empty one would stop 0.4.1. Older ones are removed, the user's own files not."""
    for step in (4, 9, 10):  # 10 is newer than 9, and comes before it by name
        write_checkpoint(tmp_path, step)
    if content is not None:
        (tmp_path / TRACKER).write_text(content)
    (tmp_path / "global_step_x").mkdir()
    (tmp_path / "notes.txt").touch()
    assert prepare(tmp_path) == (10, [9, 10])
    left = ["global_step_10", "global_step_9", "global_step_x", "notes.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize("how", BREAKS)
def test_a_half_written_one_is_passed_over_and_removed(how, tmp_path):
    BREAKS[how](write_checkpoint(tmp_path, 6))
    assert prepare(tmp_path) == (None, [])
    write_checkpoint(tmp_path, 5)
    BREAKS[how](write_checkpoint(tmp_path, 6))
    assert prepare(tmp_path) == (5, [5])


def test_another_number_of_gpus_is_refused_and_nothing_is_touched(tmp_path):
    for step in (3, 4, 5):
        write_checkpoint(tmp_path, step, world_size=4)
    with pytest.raises(UserError, match=r"4 GPUs saved the newest checkpoint, of step 5.*\(now: 2\)"):
        prepare(tmp_path)
    assert steps_in(tmp_path) == [3, 4, 5]


def test_what_was_not_saved_is_not_missed(tmp_path):
    for path in write_checkpoint(tmp_path, 5).glob("actor/optim_*"):
        path.unlink()
    assert prepare(tmp_path, contents=["model", "extra"]) == (5, [5])


def test_of_a_loop_with_a_queue_the_queue_is_last(tmp_path):
    """verl 0.9.1 renames the queue's folder into place after data.pt (TransferQueue, interface.py)."""
    (write_checkpoint(tmp_path, 5) / "transfer_queue").mkdir()
    (write_checkpoint(tmp_path, 6) / "transfer_queue.tmp").mkdir()
    assert prepare(tmp_path, mode="colocate_async") == (5, [5])
