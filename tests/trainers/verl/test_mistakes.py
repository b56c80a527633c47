"""Is each mistake one line, told before a GPU is asked for anything?"""

import hashlib
import json
import textwrap

import pytest

from common.files import tree_sha256

from .environments import VERSIONS
from .runs import answer_of

pytestmark = pytest.mark.full("both releases' own refusals")

# One process tries many orders, since importing verl takes longer than refusing.
REFUSALS = """
import contextlib, io, json, os, sys
from trainers.verl.driver import train as verl_grpo
from node.exit_codes import run
told = {}
for name, [attempt, environment] in json.load(sys.stdin).items():
    os.environ.pop("RAY_ADDRESS", None)
    os.environ.update(environment)
    sys.argv, said = ["verl_grpo", attempt], io.StringIO()
    with contextlib.redirect_stderr(said):
        told[name] = [run(verl_grpo.main), said.getvalue()]
print("\\n" + json.dumps(told))
"""


FITTING = [
    *("data.train_batch_size=4", "trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.name=vllm",
]


def write_order(folder, version, overrides, **changes):
    """An attempt with a model folder and data that are none: nothing of them is read before they are refused."""
    model, data = folder / "model", folder / "data.parquet"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    data.write_bytes(b"none")
    inputs = {
        "data": {"path": "data.parquet", "sha256": hashlib.sha256(b"none").hexdigest()},
        "model": {"path": "model", "sha256": tree_sha256(model)},
    }
    inputs["model"] |= changes.pop("model", {})
    inputs["data"] |= changes.pop("data", {})
    spec = {
        "experiment": "tests",
        "stack": "verl-tests",
        "workload": {"rewards": changes.pop("rewards", [{"name": "length"}]), "max_response_length": 24},
        "trainer_args": {"version": version, "overrides": overrides},
        "fingerprint": "ab" * 32,
    }
    attempt = {
        "attempt": 1, "run_id": "a", "fingerprint": "ab" * 32, "spec": str(folder / "spec.json"),
        "inputs": str(folder / "inputs.json"), "attempt_dir": str(folder),
        "checkpoint_dir": str(folder / "checkpoints"), "cpus": 2, "env": {}, **changes,
    }  # fmt: skip
    for name, content in (("inputs", inputs), ("spec", spec), ("attempt", attempt)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder / "attempt.json")


@pytest.mark.parametrize("version", VERSIONS)
def test_mistakes_are_one_line(version, warm_verl, tmp_path):
    good = ["trainer.total_training_steps=2", "algorithm.adv_estimator=grpo"]
    other = next(one for one in VERSIONS if one != version)
    cases = {
        "stack": (write_order(tmp_path / "stack", other, good), f"the settings are for verl {other}, but"),
        "key": (
            write_order(tmp_path / "key", version, [*good, "trainer.total_epoch=2"]),
            "Could not override 'trainer.total_epoch'",
        ),
        "rows": (
            write_order(tmp_path / "rows", version, [*good, *FITTING], data={"rows": 3}),
            "a step takes 4 prompts (workload.batch_size / num_generations), and the data has 3 rows",
        ),
    }
    asked = {name: [order, {"RAY_ADDRESS": "192.0.2.1:1"}] for name, (order, _) in cases.items()}
    cases["ray"] = (write_order(tmp_path / "ray", version, good), "RAY_ADDRESS is not set")
    asked["ray"] = [cases["ray"][0], {}]
    told = answer_of(warm_verl(version), REFUSALS, asked)
    for name, (_, words) in cases.items():
        code, said = told[name]
        assert (code, said.count("\n")) == (2, 1), (name, said)
        assert said.startswith("error: ")
        assert words in said, name


# The names of an engine's options, as its release has them; both packages need a GPU's libraries to be imported whole.
ENGINES = {
    "sglang/srt/server_args.py": """
        import dataclasses
        @dataclasses.dataclass
        class ServerArgs:
            model_path: str = ""
            chunked_prefill_size: int = 0
            attention_backend: str = ""
        """,
    "vllm/engine/arg_utils.py": """
        import dataclasses
        @dataclasses.dataclass
        class EngineArgs:
            max_num_seqs: int = 0
            attention_backend: str = ""
        """,
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "vllm/entrypoints/openai/cli_args.py": """
        def make_arg_parser(parser):
            parser.add_argument("--max-log-len")
            return parser
        """,
}
CHECKS = """
import json, sys
folder, version, cases = json.load(sys.stdin)
sys.path.insert(0, folder)
from common.errors import UserError
from trainers.verl.driver.composed import check_engine_options
said = []
for engine, options in cases:
    try:
        said.append(check_engine_options(version, {"name": engine, "engine_kwargs": {engine: options}}) or "")
    except UserError as error:
        said.append(str(error))
print("\\n" + json.dumps(said))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_misspelt_option_of_the_engine_is_refused_when_the_stack_composes(version, warm_verl, tmp_path):
    for name, text in ENGINES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()
        file.write_text(textwrap.dedent(text))
    cases = [
        ("vllm", {"max_num_seqs": 4, "attention_backend": None, "swap_space": None}),
        ("vllm", {"max_num_sequences": 4}),
        ("vllm", {"max_log_len": 8}),
        ("sglang", {"chunked_prefill_size": 512}),
        ("sglang", {"chunked_prefil_size": 512}),
        ("trtllm", {"anything": 1}),
    ]
    good, wrong, served, fine, other, unknown = answer_of(warm_verl(version), CHECKS, [str(tmp_path), version, cases])
    assert (good, fine, unknown) == ("", "", "")
    assert "engine_kwargs.vllm.max_num_sequences is no option of vLLM" in wrong and "max_num_seqs?" in wrong
    # 0.4.1 builds vLLM's LLM, 0.9.1 its server; 0.4.1 passes SGLang none (finding engine-kwargs-ignored).
    assert ("max_log_len is no option of vLLM" in served) is (version == "0.4.1")
    assert ("chunked_prefil_size is no option of SGLang" in other) is (version == "0.9.1")
