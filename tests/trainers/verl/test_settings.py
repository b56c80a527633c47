"""verl's adapter: what a workload becomes, composed by Hydra from verl's own configuration of both versions."""

import functools
import re

import pytest

from common.dotted import flatten
from common.errors import UserError
from tests.trainers.composed import composed_by
from tests.trainers.verl.tiers import RELEASES, SECOND
from trainers.protocol import StackFacts
from trainers.verl import settings as verl
from trainers.verl.driver.composed import job_overrides
from trainers.verl.driver.overrides import override
from trainers.verl.releases import release_named, releases
from trainers.verl.settings import settings
from trainers.workload import Workload
from workflow.config.model import Arm

VERSIONS = tuple(release.version for release in releases())
A, R, REF, M = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model"))

WORKLOAD = {
    "model": {"source": "builtin:tiny-qwen2"}, "data": {"source": "builtin:arithmetic"},
    "rewards": [{"name": "accuracy"}], "steps": 12, "batch_size": 32, "num_generations": 4, "micro_batch_size": 2,
    "max_prompt_length": 64, "max_response_length": 128, "gpus_per_node": 2,
}  # fmt: skip


def overrides(version, options=None, *, engine="vllm", seed=5, base=WORKLOAD, **words):
    """What the adapter makes of a small workload, with some words and an arm's options replaced."""
    arm = Arm(
        trainer="verl", engine=engine, stack=f"verl{version[:3].replace('.', '')}-{engine}", options=options or {}
    )
    stack = StackFacts("verl", engine, "cuda", version, "0" * 12)
    args = verl.trainer_args(arm, Workload.model_validate({**base, **words}), seed, stack)
    assert args["version"] == version
    found = args["overrides"]
    return found


def on_the_node(version):
    return job_overrides(
        version,
        train_files="/inputs/it's, data=1/train.parquet",
        val_files="/inputs/val.parquet",
        model="/models/ünï code",
        checkpoints="/checkpoints/[a]",
        project="an experiment",
        run_id="vllm-temperature=0.5-s0",
        reward_file="/repo/trainers/verl/driver/reward.py",
        reward_kwargs={"rewards": [{"name": "length", "weight": 1e-6, "options": {"target": 20}}], "said": "it's {x}"},
    )


# Each composed once, together, in one process per version.
def good(version):
    of = functools.partial(overrides, version)
    lora = {"lora_rank": 32, "lora_alpha": 64, "target_modules": ["q_proj", "v_proj"]}
    ulysses = {f"{A}.ulysses_sequence_parallel_size": 2, f"{M}.use_remove_padding": True}
    own = {"kv_cache_dtype": "fp8", "compilation_config": {"level": 3}}
    cache = {f"{R}.enforce_eager": False, f"{R}.free_cache_engine": version != "0.4.1"}
    nodes = {"nodes": 2, "gpus_per_node": 8, "batch_size": 64, "mini_batch_size": 32}
    cases = {
        "small": of(),
        "on the node": of() + on_the_node(version),
        "sglang": of(engine="sglang"),
        "sequence parallel": of(ulysses, gpus_per_node=4, micro_batch_size=None),
        "lora": of({M: lora, f"{R}.load_format": "safetensors"}),
        "two nodes": of({f"{R}.tensor_model_parallel_size": 8}, **nodes),
        "penalty": of(beta=0.04, loss_type="dapo", test_steps=3, save_steps=4, lr_warmup_steps=2),
        "dr_grpo": of(loss_type="dr_grpo", micro_batch_size=1),
        "freed": of({f"{A}.entropy_coeff": 0.01, f"{A}.optim.weight_decay": 0.01, f"{A}.grad_clip": 0.5}),
        "engine": of({f"+{R}.engine_kwargs.vllm": own, **cache}),
    }
    if version != "0.4.1":
        fa3 = {f"{M}.lora.merge": True, f"+{R}.engine_kwargs.sglang": {"attention_backend": "fa3"}}
        cases["sglang, lora"] = of({M: lora, **fa3}, engine="sglang")
    return cases


# name -> overrides, and what the error says: Hydra's, or verl's own validation's after it.


def bad(version):
    def with_(*more, **words):
        return [*overrides(version, **words), *more]

    cases = {
        "misspelled": (with_(f"{R}.gpu_memory_utilisation=0.5"), "gpu_memory_utilisation"),
        "batch on GPUs": (with_(gpus_per_node=6), "must be divisible by minimal possible batch size"),
        "mini-batch over the batch": (with_(mini_batch_size=64), "train_batch_size"),
        "both micro-batches": (with_(f"{A}.ppo_micro_batch_size=4"), "You have set both"),
        "no micro-batch": (with_(f"{R}.log_prob_micro_batch_size_per_gpu=null"), "Please set at least one of"),
        "Ulysses with padding": (
            with_(f"{A}.ulysses_sequence_parallel_size=2", f"{M}.use_remove_padding=false", mini_batch_size=4),
            "you must enable `use_remove_padding`",
        ),
    }
    if version == "0.4.1":
        cases |= {
            "several turns": (
                with_(f"{R}.multi_turn.enable=true"),
                "tool_config_path or interaction_config_path must be set",
            )
        }
    else:
        cases |= {
            "sync": (with_(f"{R}.mode=sync"), "sync"),
            "what no dataclass takes": (with_(f"+{R}.max_seqs=3"), "max_seqs"),
        }
    return cases


@pytest.fixture(scope="session")
def composed(warm_verl, tmp_path_factory):
    """By version: every case, composed and validated in a Python with that verl."""
    folder = tmp_path_factory.mktemp("composed")

    @functools.cache
    def of(version):
        cases = good(version) | {name: case[0] for name, case in bad(version).items()}
        values = (override(f"+values.v{index}", value) for index, value in enumerate(VALUES))
        cases["values"] = [*overrides(version), *values]
        return composed_by(version, cases, folder, warm_verl(version))

    return of


# Everything that Hydra's grammar or YAML could mistake for something else.
VALUES = [
    *("", "a", "a b", "a,b", "a=b", "{x}", "[x]", "it's", 'say "x"', "\\", "a\\", "\\'", "\\\\'x", "a\\b", "'", "''"),
    *(
        "x\ny",
        "é日本",
        "null",
        "None",
        "TRUE",
        "yes",
        "1",
        "1e-6",
        "1_000",
        "-1",
        "~",
        "a:b",
        "#",
        "  x  ",
        "\t",
        "$HOME",
    ),
    *("%", "!x", "/a/b-c.d", "inf", "nan", "a\\\\b", "(x)", "choice(1,2)", "x;y", "*", "?", "???", "2020-01-01"),
    *(1e-6, 1e16, 1e-300, 0.1, 0.0, 5e-324, 1.0, 10**30, -3, 0, True, False, None),
    *([], [1, "a", [None, True]], ["a, b", "c]"], {}, {"a": {"b": [1.0, "x y"]}, "c-d": "it's"}),
]


@pytest.mark.parametrize("version", RELEASES)
def test_values_arrive_as_they_were_given(version, composed):
    arrived = composed(version)["values"]["config"]["values"]
    for index, value in enumerate(VALUES):
        assert (arrived[f"v{index}"], type(arrived[f"v{index}"])) == (value, type(value))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("a b", 1, "is no key that Hydra can read"),
        ("a", float("nan"), "a must be a finite number"),
        ("a", {"b c": 1}, "a: 'b c' cannot be the key of a mapping"),
        ("a", [{"null": 1}], "a[0]: 'null' cannot be the key of a mapping"),
    ],
)
def test_what_hydra_cannot_be_told_is_refused(key, value, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        override(key, value)


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("sglang", {f"{R}.name": "sglang"}),
        ("sequence parallel", {f"{A}.ppo_micro_batch_size_per_gpu": 16, f"{REF}.ulysses_sequence_parallel_size": 2}),
        ("lora", {f"{M}.lora_rank": 32, f"{M}.lora_alpha": 64, f"{M}.target_modules": ["q_proj", "v_proj"]}),
        (
            "two nodes",
            {
                **{"trainer.nnodes": 2, "trainer.n_gpus_per_node": 8, f"{R}.tensor_model_parallel_size": 8},
                **{"data.train_batch_size": 16, f"{A}.ppo_mini_batch_size": 8, f"{A}.ppo_micro_batch_size_per_gpu": 2},
            },
        ),
        (
            "penalty",
            {
                **{f"{A}.use_kl_loss": True, f"{A}.kl_loss_coef": 0.04, f"{A}.kl_loss_type": "low_var_kl"},
                **{f"{A}.loss_agg_mode": "token-mean", f"{A}.optim.lr_warmup_steps": 2},
                **{"trainer.test_freq": 3, "trainer.save_freq": 4},
            },
        ),
        ("dr_grpo", {f"{A}.loss_agg_mode": "seq-mean-token-sum-norm"}),
        ("freed", {f"{A}.entropy_coeff": 0.01, f"{A}.optim.weight_decay": 0.01, f"{A}.grad_clip": 0.5}),
        (
            "engine",
            {f"{R}.engine_kwargs.vllm.kv_cache_dtype": "fp8", f"{R}.engine_kwargs.vllm.compilation_config.level": 3},
        ),
    ],
)
def test_each_case_composes_to_what_was_meant(version, case, expected, composed):
    got = flatten(composed(version)[case]["config"])
    assert {key: got.get(key, "missing") for key in expected} == expected


def test_what_only_0_9_1_has(composed):
    got = composed("0.9.1")
    assert flatten(got["dr_grpo"]["config"])[f"{A}.loss_scale_factor"] == 128
    merged = flatten(got["sglang, lora"]["config"])
    assert merged[f"{M}.lora.merge"] is True
    assert merged[f"{R}.engine_kwargs.sglang.attention_backend"] == "fa3"


@pytest.mark.parametrize("version", RELEASES)
def test_the_jobs_own_settings_arrive(version, composed):
    got = flatten(composed(version)["on the node"]["config"])
    reward = {"0.4.1": "custom_reward_function", "0.9.1": "reward.custom_reward_function"}[version]
    expected = {
        "data.train_files": "/inputs/it's, data=1/train.parquet",
        "data.val_files": "/inputs/val.parquet",
        f"{M}.path": "/models/ünï code",
        "trainer.default_local_dir": "/checkpoints/[a]",
        "trainer.project_name": "an experiment",
        "trainer.experiment_name": "vllm-temperature=0.5-s0",
        "trainer.resume_mode": "auto",
        "trainer.logger": ["console", "wandb", *(["file"] if version == "0.9.1" else [])],
        f"{reward}.path": "/repo/trainers/verl/driver/reward.py",
        f"{reward}.name": "compute_score",
        f"{reward}.reward_kwargs.said": "it's {x}",
        f"{reward}.reward_kwargs.rewards": [{"name": "length", "weight": 1e-6, "options": {"target": 20}}],
    }
    assert {key: got.get(key, "missing") for key in expected} == expected


@pytest.mark.parametrize("version", RELEASES)
def test_verl_would_start_with_every_good_case(version, composed):
    for name in good(version):
        said = composed(version)[name]["error"]
        if (version, name) == ("0.9.1", "lora"):  # verl asks the installed vLLM, and a CPU's environment has none
            assert "vllm version None" in said
            continue
        assert said is None, name


@pytest.mark.parametrize(
    ("version", "case"),
    [
        pytest.param(version, case, marks=() if version == "0.9.1" else SECOND)
        for version in VERSIONS
        for case in bad(version)
    ],
)
def test_a_bad_setting_is_told_before_the_queue(version, case, composed):
    said = composed(version)[case]["error"]
    assert bad(version)[case][1] in (said or "no error")
    assert "\n" not in said


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("key", "says"),
    [
        (f"{R}.temperature", "it follows from workload.temperature; change that instead"),
        ("algorithm.adv_estimator", "rolloutbench sets it, since it compares GRPO"),
        ("custom_reward_function.reward_kwargs.x", "the job sets it on the node"),
        ("trainer", "is a section of verl's configuration, not one setting"),
    ],
)
def test_an_option_that_is_not_free_is_refused(version, key, says):
    with pytest.raises(UserError) as caught:
        overrides(version, {key: 3})
    assert f"options.{key} " in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("version", RELEASES)
def test_every_word_and_every_key_of_the_job_is_refused_as_an_option(version):
    owned = settings(Workload.model_validate(WORKLOAD), "vllm", 0, release_named(version), 1, False)
    for key in [*owned, *release_named(version).job_keys, *release_named(version).reserved_keys]:
        with pytest.raises(UserError, match="of an arm is not free"):
            overrides(version, {key.lstrip("+"): 1})
    for key, value in release_named(version).trl_defaults.items():
        other = not value if isinstance(value, bool) else [0.5, 0.5] if isinstance(value, list) else value + 1
        assert overrides(version, {key: other})[-1] == override(key, other)


@pytest.mark.parametrize(
    ("version", "options", "words", "says"),
    [
        ("0.4.1", {}, {"gpus_per_node": 0}, "workload.gpus_per_node must be at least 1 with trainer verl"),
        ("0.9.1", {}, {"dtype": "float32"}, "workload.dtype must be bfloat16 with trainer verl"),
        ("0.9.1", {}, {"mini_batch_size": 6}, "workload.mini_batch_size must be a multiple of num_generations"),
        ("0.4.1", {}, {"loss_type": "dr_grpo"}, "workload.loss_type dr_grpo needs micro_batch_size 1"),
        (
            "0.4.1",
            {f"{A}.use_dynamic_bsz": True},
            {"loss_type": "dr_grpo", "micro_batch_size": 1},
            "no use_dynamic_bsz",
        ),
        ("0.4.2", {}, {}, "pins verl 0.4.2, which is not supported; supported: 0.4.1, 0.9.1"),
        ("0.4.1", {"data.tokenizer": "${oc.env:HOME}"}, {}, "reads an environment variable"),
    ],
)
def test_what_verl_cannot_do_is_told_in_the_plan(version, options, words, says):
    with pytest.raises(UserError, match=re.escape(says)):
        overrides(version, options, **words)


def test_a_micro_batch_that_is_not_given_is_a_devices_share_of_the_mini_batch():
    for words, expected in (({}, 16), ({"mini_batch_size": 8}, 4), ({"nodes": 2}, 8), ({"gpus_per_node": 64}, 1)):
        written = overrides("0.4.1", **{"micro_batch_size": None, **words})
        assert f"{A}.ppo_micro_batch_size_per_gpu={expected}" in written


def test_seeds_and_arms_change_only_what_they_should():
    one, other = overrides("0.9.1", seed=1), overrides("0.9.1", seed=2)
    assert [a.partition("=")[0] for a, b in zip(one, other, strict=True) if a != b] == [
        *("data.seed", f"{A}.data_loader_seed", f"{R}.seed")
    ]
    vllm, sglang = overrides("0.4.1"), overrides("0.4.1", engine="sglang")
    assert [a for a, b in zip(vllm, sglang, strict=True) if a != b] == [f"{R}.name=vllm"]
