"""Folders as verl's FSDP checkpoints leave them, whole and broken; a .pt file is a zip archive, and so are these."""

import zipfile

import pytest

from common.errors import UserError
from trainers.verl.driver.checkpoints import TRACKER, find_checkpoints, prepare
from trainers.verl.driver.train import prepared_checkpoints


def write_archive(path, size=2000):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x" * size)


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


def steps_in(folder):
    return sorted(int(path.name.removeprefix("global_step_")) for path in folder.glob("global_step_*"))


@pytest.mark.parametrize("content", ["20", "", "30", None])
def test_the_newest_is_resumed_from_whatever_verls_file_says(content, tmp_path):
    """And verl does not read it: an empty one would stop 0.4.1."""
    for step in (9, 10):  # 10 is newer than 9, and comes before it by name
        write_checkpoint(tmp_path, step)
    if content is not None:
        (tmp_path / TRACKER).write_text(content)
    assert prepare(tmp_path, 2) == 10
    assert steps_in(tmp_path) == [9, 10] and not (tmp_path / TRACKER).exists()


def test_many_old_ones_are_pruned(tmp_path):
    for step in (2, 4, 6, 8, 10):
        write_checkpoint(tmp_path, step)
    (tmp_path / "global_step_x").mkdir()
    (tmp_path / "notes.txt").write_text("the user's own")
    assert prepare(tmp_path, 2) == 10
    left = ["global_step_10", "global_step_8", "global_step_x", "notes.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


SHARD = "actor/optim_world_size_2_rank_1.pt"
BROKEN = {
    "no data.pt": lambda at: (at / "data.pt").unlink(),
    "empty data.pt": lambda at: (at / "data.pt").write_bytes(b""),
    "a shard is missing": lambda at: (at / SHARD).unlink(),
    "a shard is cut": lambda at: (at / SHARD).write_bytes((at / SHARD).read_bytes()[:1500]),
    "a rank is missing": lambda at: [path.unlink() for path in at.glob("actor/*_rank_1.pt")],
    "rank 0 was not done": lambda at: [path.unlink() for path in at.glob("actor/**/*config.json")],
    "empty": lambda at: [path.unlink() for path in at.glob("actor/*.*")],
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_half_written_one_is_passed_over_and_removed(how, tmp_path):
    write_checkpoint(tmp_path, 5)
    BROKEN[how](write_checkpoint(tmp_path, 6))
    assert prepare(tmp_path, 2) == 5
    assert steps_in(tmp_path) == [5]


def test_only_half_written_ones(tmp_path):
    BROKEN["no data.pt"](write_checkpoint(tmp_path, 5))
    assert prepare(tmp_path, 2) is None
    assert steps_in(tmp_path) == []


def test_another_number_of_gpus_is_refused_and_nothing_is_touched(tmp_path):
    for step in (3, 4, 5):
        write_checkpoint(tmp_path, step, world_size=4)
    with pytest.raises(UserError, match=r"4 GPUs saved the newest checkpoint, of step 5.*\(now: 2\)"):
        prepare(tmp_path, 2)
    assert steps_in(tmp_path) == [3, 4, 5]


def test_what_was_not_saved_is_not_missed(tmp_path):
    for path in write_checkpoint(tmp_path, 5).glob("actor/optim_*"):
        path.unlink()
    assert [*find_checkpoints(tmp_path).values()] == [None]
    assert prepare(tmp_path, 2, contents=["model", "extra_state"]) == 5


def test_of_a_loop_with_a_queue_the_queue_is_last(tmp_path):
    """verl 0.9.1 renames the queue's folder into place after data.pt (TransferQueue, interface.py)."""
    (write_checkpoint(tmp_path, 5) / "transfer_queue").mkdir()
    (write_checkpoint(tmp_path, 6) / "transfer_queue.tmp").mkdir()
    loop = {"use_v1": True, "v1": {"trainer_mode": "colocate_async"}}
    actor = {"strategy": "fsdp2", "checkpoint": {"load_contents": ["model", "optimizer", "extra"]}}
    composed = {"trainer": loop, "actor_rollout_ref": {"actor": actor}}
    assert prepared_checkpoints({"checkpoint_dir": tmp_path}, composed, 2) == 5
    assert steps_in(tmp_path) == [5]
