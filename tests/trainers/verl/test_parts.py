"""Pieces of verl's own that need no Ray, with our hooks (pieces.py)."""

import json
import math
from pathlib import Path

import pytest

from common.errors import UserError
from engines.sglang import settings as of_sglang
from engines.vllm import settings as of_vllm
from node.seeds import engine_seed
from trainers.registry import trainer_named
from trainers.verl.driver.composed import check_engine_options
from trainers.verl.driver.step_hooks import reward_scalars

from .environments import VERSIONS


@pytest.mark.full("verl's own classes of both releases")
@pytest.mark.parametrize("version", VERSIONS)
def test_pieces_of_verl(version, warm_verl, tmp_path):
    done = warm_verl(version).run(Path(__file__).with_name("pieces.py"), version, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    for rows in told["order"].values():
        whole = rows["whole"]
        assert whole[:5] != whole[5:10] != whole[10:15]  # each pass is shuffled anew
        resumed_otherwise = {step: taken for step, taken in rows["resumed"].items() if taken != whole}
        assert resumed_otherwise == {}, "a resumed run has the data order of an uninterrupted one"
    # The validation before a step is none. What is asked for late in a step is saved after it.
    assert told["late"] == {"logged": [[4, True], [5, False]], "saved": [5]}
    # 0.4.1 would give it to every request; verl's own default is 42.
    assert told["seeds"] == ([False, False] if version == "0.4.1" else [engine_seed(42, 0), engine_seed(42, 20)])


def test_rewards_have_trls_names_and_one_without_a_value_is_in_no_mean():
    values = {"accuracy": [0.0, 1.0] * 4, "mine": [math.nan, *range(1, 8)], "mine_failed": [1.0] + [0.0] * 7}
    found = reward_scalars(values, ("accuracy", "mine"))
    assert (found["rewards/accuracy/mean"], found["rewards/mine/mean"], found["rewards/mine/failed"]) == (0.5, 4.0, 1)
    assert found["rewards/accuracy/std"] == pytest.approx((2 / 7) ** 0.5) and "rewards/accuracy/failed" not in found


def test_where_verl_compares_log_probabilities_itself_its_numbers_are_read():
    assert "actor/rollout_corr/k3_kl" in trainer_named("verl").logs.quantities["rollout_k3"]


# 0.4.1 builds vLLM's LLM, 0.9.1 its server; 0.4.1 passes SGLang none (finding engine-kwargs-ignored).
@pytest.mark.parametrize(
    ("engine", "options", "refused_by"),
    [
        ("vllm", {"max_num_seqs": 4, "swap_space": None}, ()),
        ("vllm", {"max_num_sequences": 4}, VERSIONS),
        ("vllm", {"max_log_len": 8}, ("0.4.1",)),
        ("sglang", {"chunked_prefill_size": 512}, ()),
        ("sglang", {"max_num_sequences": 512}, ("0.9.1",)),
        ("trtllm", {"anything": 1}, ()),
    ],
)
def test_a_misspelt_option_of_the_engine_is_refused_when_the_stack_composes(engine, options, refused_by, monkeypatch):
    for module in (of_vllm, of_sglang):
        monkeypatch.setattr(module, "known_options", lambda: {"max_num_seqs", "chunked_prefill_size"})
        monkeypatch.setattr(module, "server_options", lambda: {"max_num_seqs", "chunked_prefill_size", "max_log_len"})
    for version in VERSIONS:
        says = []
        try:
            check_engine_options(version, {"name": engine, "engine_kwargs": {engine: options}})
        except UserError as error:
            says.append(str(error))
        assert bool(says) == (version in refused_by), says
        assert all(f"engine_kwargs.{engine}.{next(iter(options))} is no option of" in one for one in says)
