"""The stacks that are shipped: understood, fast to ask, and refused with a useful word when wrong."""

import shutil

import pytest

from common.errors import UserError
from workflow.stacks import definition, load_stack, lock_id
from workflow.stacks.definition import ENVS, verify_id


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("engine:", "engin:", r"unknown key 'engin' \(did you mean engine\?\)"),
        ("accelerator: cpu", "accelerator: cuda", 'set `cuda`.* such as "12.4", for `accelerator: cuda`'),
    ],
)
def test_a_faulty_stack_yaml_is_refused(tmp_path, old, new, message):
    shutil.copytree(ENVS / "trl-vllm-cpu", tmp_path / "s")
    path = tmp_path / "s" / "stack.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=message):
        load_stack("s", tmp_path)


def test_the_lock_id_follows_the_lock_and_the_python_release_only(tmp_path):
    shutil.copytree(ENVS / "trl-vllm-cpu", tmp_path / "s")
    first = lock_id(load_stack("s", tmp_path))
    stack = tmp_path / "s" / "stack.yaml"
    stack.write_text(stack.read_text().replace("description: ", "description: Another. "))
    (tmp_path / "s" / "verify.py").write_text("")
    assert lock_id(load_stack("s", tmp_path)) == first
    stack.write_text(stack.read_text().replace('"3.11"', '"3.12"'))
    second = lock_id(load_stack("s", tmp_path))
    lock = tmp_path / "s" / "requirements.lock"
    lock.write_text("# another comment\n\n" + lock.read_text().replace("    # via", "    # wanted by"))
    assert lock_id(load_stack("s", tmp_path)) == second
    lock.write_text(lock.read_text().replace("==", "==1!", 1))
    assert len({first, second, lock_id(load_stack("s", tmp_path))}) == 3
    lock.unlink()
    with pytest.raises(UserError, match="make lock STACK=s"):
        lock_id(load_stack("s", tmp_path))


def test_a_finished_runs_lock_keeps_its_id():
    """Fingerprints have it: the ids of the locks that were there when an id was a hash of the whole text."""
    assert lock_id(load_stack("trl-vllm-cpu")) == "ef229efb9f8d", "or another lock: then change it here"
    assert lock_id(load_stack("verl09-vllm")) == "a5dd3fc01ced"


def test_run_time_settings_ask_for_another_check_and_for_no_other_environment(tmp_path):
    shutil.copytree(ENVS / "trl-vllm-cpu", tmp_path / "s")
    shutil.copy(ENVS / "_verify.py", tmp_path)
    path = tmp_path / "s" / "stack.yaml"
    text = path.read_text()
    found = []
    for added in ("", "run_caches: {A: a}\n", 'run_paths: {A: ["/b"]}\n'):
        path.write_text(text + added)
        found.append((lock_id(load_stack("s", tmp_path)), verify_id(load_stack("s", tmp_path))))
    (tmp_path / "_needs.py").write_text("")
    found.append((lock_id(load_stack("s", tmp_path)), verify_id(load_stack("s", tmp_path))))
    assert len({lock for lock, _ in found}) == 1, "a finished run would be trained again"
    assert len({verified for _, verified in found}) == 4


def test_code_that_a_stacks_check_runs_asks_for_another_check(tmp_path, monkeypatch):
    """And for none of other stacks."""
    monkeypatch.setattr(definition, "ROOT", tmp_path)
    for name in ("trl-sglang-cpu", "trl-vllm-cpu"):
        shutil.copytree(ENVS / name, tmp_path / "envs" / name)
    shutil.copytree(ENVS.parent / "engines" / "sglang", tmp_path / "engines" / "sglang")
    envs, found = tmp_path / "envs", []
    for file in ("", "replay.py", "client.py", "standins.py", "server.py"):
        if file:
            (tmp_path / "engines" / "sglang" / file).write_text("changed")
        found.append([verify_id(load_stack(name, envs)) for name in ("trl-sglang-cpu", "trl-vllm-cpu")])
    of_sglang, of_vllm = zip(*found, strict=True)
    assert len(set(of_vllm)) == 1 and of_sglang[0] == of_sglang[1] and len(set(of_sglang)) == 4
    (tmp_path / "engines" / "sglang" / "client.py").unlink()
    with pytest.raises(UserError, match=r"verify_code: no such file: engines/sglang/client\.py"):
        load_stack("trl-sglang-cpu", envs)


def test_the_conda_layer_and_the_source_builds_are_in_the_lock_id(tmp_path):
    shutil.copytree(ENVS / "trl-vllm-cpu", tmp_path / "s")
    stack = tmp_path / "s" / "stack.yaml"
    ids = [lock_id(load_stack("s", tmp_path))]
    assert load_stack("s", tmp_path).conda_lock is None
    (tmp_path / "s" / "conda-lock.yml").write_text("version: 1\n")
    assert load_stack("s", tmp_path).conda_lock == tmp_path / "s" / "conda-lock.yml"
    ids.append(lock_id(load_stack("s", tmp_path)))
    stack.write_text(
        stack.read_text() + "source_builds: [Flash_Attn]\nsource_environment: {TORCH_CUDA_ARCH_LIST: '9.0'}\n"
    )
    assert load_stack("s", tmp_path).source_builds == ("flash-attn",)
    ids.append(lock_id(load_stack("s", tmp_path)))
    stack.write_text(stack.read_text().replace("9.0", "8.0"))
    ids.append(lock_id(load_stack("s", tmp_path)))
    assert len(set(ids)) == 4
