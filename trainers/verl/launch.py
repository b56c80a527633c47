"""Reads a command of verl, `python -m verl.trainer.main_ppo key=value ...`, as an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from common.errors import UserError
from node.dataset import BUILTIN_DATA
from node.tiny import BUILTIN_MODELS
from trainers.launching import STEPS, Argument, Checkpoints, Launch, Launched, Left, Surroundings, as_count, words_of
from trainers.verl.driver.overrides import ACTOR, BOOKKEEPING, MODEL, ROLLOUT, listed_part
from trainers.verl.given import KEYS, TABLE, parsed, value_of
from trainers.verl.releases import Release, releases
from trainers.verl.releases.release import LOSSES
from trainers.verl.settings import settings as derived
from trainers.workload import Workload

_CONFIG = "ppo_trainer"
# The engine of verl 0.4.1; later releases require one.
_DEFAULT_ENGINE = "vllm"
_TABLE = TABLE["launch"]
_NUMBERS = [key for key, value in _TABLE["defaults"].items() if isinstance(value, int | float)]
_TOTAL = "trainer.total_training_steps"
_REWARD_SECTIONS = ("custom_reward_function", "reward.custom_reward_function")


def arguments(words: Sequence[str]) -> int | None:
    """Where the overrides begin: after the module, or after a script of verl's of that name."""
    for place, word in enumerate(words):
        module = word in _TABLE["modules"] and place > 0 and words[place - 1] == "-m"
        if module or (word.endswith(".py") and word.rpartition("/")[2][:-3] in ("main_ppo", "main_dapo")):
            return place + 1
    return None


def settings(words: Sequence[Argument], around: Surroundings, version: str) -> Mapping[str, Any]:
    """The settings that the command itself gives."""
    return dict(parsed(text.lstrip("+") for text in _overrides(words)))


def launch(words: Sequence[Argument], around: Surroundings) -> Launched:
    """The experiment of the command; a `UserError` if it trains with another estimator than GRPO's."""
    _require_fsdp(words)
    release = next(reversed(releases()))
    given = settings(words, around, release.version)
    unset = [key for key in (*_NUMBERS, _TOTAL) if "$" in str(given.get(key))]
    values = {**_TABLE["defaults"], **{key: value for key, value in given.items() if key not in unset}}
    estimator = values.get("algorithm.adv_estimator")
    if estimator != "grpo":
        raise UserError(
            f"the script trains with algorithm.adv_estimator={estimator} (verl's default is gae), and an experiment "
            "compares GRPO; `rolloutbench ab` runs a script as it is"
        )
    engine = values.get(f"{ROLLOUT}.name")
    found = Launched(str(engine or _DEFAULT_ENGINE), release.version, _workload(values))
    if engine is None:
        why = f"the script names no engine: {found.engine}, verl 0.4.1's default"
        found.left.append(Left(0, f"{ROLLOUT}.name", why, "change baseline and arms if it is another"))
    for name, asked in (("nodes", around.nodes), ("gpus_per_node", around.gpus_per_node)):
        # `trainer.nnodes=$SLURM_JOB_NUM_NODES` is what the script requests.
        if KEYS[name][0] in unset and asked:
            found.workload[name] = asked
            unset.remove(KEYS[name][0])
    found.seed = as_count(values.get("data.seed"))
    found.owners = _owners(found, release)
    _leave_to_caller(found, unset, words)
    not_options = (*release.job_keys, *release.reserved_keys, *BOOKKEEPING, *_REWARD_SECTIONS)
    for word in words:
        key, equals, text = word.text.partition("=")
        bare = key.lstrip("+")
        if not equals:
            found.left.append(Left(word.line, word.text, "not a setting of verl's (key=value)", "give it by hand"))
        elif listed_part(bare, BOOKKEEPING):
            found.left.append(
                Left(word.line, bare.rpartition(".")[2], "names, trackers and places: the job sets its own")
            )
        elif bare not in {*_TABLE["by_words"], *found.owners, *unset} and not listed_part(bare, not_options):
            _option(found, word, key, value_of(text))
    found.left += _not_kept(values, found, words)
    found.options = {
        key: theirs for key, theirs in _TABLE["unlike_ours"].items() if not _given(words, key)
    } | found.options
    return found


def _leave_to_caller(found: Launched, unset: Sequence[str], words: Sequence[Argument]) -> None:
    """List the numbers that the script takes from its caller, and say where their values are to be written."""
    for key in unset:
        word = _given(words, key)
        assert word is not None
        owner = "steps" if key == _TOTAL else found.owners.get(key, "")
        target = f"workload.{owner}" if owner in Workload.model_fields else owner or key
        names = ", ".join(word.unknown) or word.text
        default = _TABLE["defaults"].get(key, STEPS)
        why = f"{names}: not set in the script: {default} is used"
        found.left.append(Left(word.line, word.text, why, f"correct {target}"))
        todo = f"set {target} by the value of {word.text}"
        if owner in ("num_generations", "batch_size"):
            todo += " (batch_size counts completions: prompts x num_generations)"
        found.to_write[owner or key] = todo


def _require_fsdp(words: Sequence[Argument]) -> None:
    """`UserError` for another trainer configuration than `ppo_trainer`: the stacks here have FSDP alone."""
    for word, following in zip_longest(words, words[1:]):
        name, equals, value = word.text.partition("=")
        value = value if equals or following is None else following.text
        other = name in ("--config-name", "-cn") and value.removesuffix(".yaml") not in ("", _CONFIG)
        if other or (name.lstrip("+") in _TABLE["backends"] and not value.startswith(("fsdp", "dp"))):
            raise UserError(
                f"line {word.line}: {name}={value}: an experiment has verl's {_CONFIG} with FSDP; `rolloutbench ab` "
                "runs a script as it is"
            )


def _overrides(words: Sequence[Argument]) -> list[str]:
    return [word.text for word in words if "=" in word.text and not word.text.startswith("-")]


def _given(words: Sequence[Argument], key: str) -> Argument | None:
    """The last word that sets a key."""
    return next((word for word in reversed(words) if word.text.partition("=")[0].lstrip("+") == key), None)


def _workload(values: Mapping[str, Any]) -> dict[str, Any]:
    generations = as_count(values.get(f"{ROLLOUT}.n"), 1)
    prompts = as_count(values.get("data.train_batch_size"), 1)
    mini = as_count(values.get(f"{ACTOR}.ppo_mini_batch_size"), prompts)
    steps = as_count(values.get(_TOTAL)) or STEPS
    warmup = as_count(values.get(f"{ACTOR}.optim.lr_warmup_steps"), -1)
    ratio = values.get(f"{ACTOR}.optim.lr_warmup_steps_ratio") or 0.0
    modes = {mode: name for name, mode in reversed([*LOSSES.items()])}
    test = max(0, as_count(values.get("trainer.test_freq"), -1))
    data = {
        "source": _first(values.get("data.train_files")),
        "prompt_column": values.get("data.prompt_key") or "prompt",
        "answer_column": "reward_model.ground_truth",
        **({"test_source": _first(values.get("data.val_files"))} if test else {}),
        **({"too_long": "drop"} if values.get("data.filter_overlong_prompts") else {}),
    }
    return {
        "model": {"source": str(values.get(f"{MODEL}.path"))},
        "data": data,
        "rewards": _rewards(values),
        **words_of(KEYS, values),
        "steps": steps,
        "batch_size": prompts * generations,
        "num_generations": generations,
        "mini_batch_size": None if mini == prompts else mini * generations,
        "micro_batch_size": values.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        "lr_warmup_steps": warmup if warmup >= 0 else int(ratio * steps),
        "beta": values.get(f"{ACTOR}.kl_loss_coef") if values.get(f"{ACTOR}.use_kl_loss") else 0.0,
        "loss_type": modes.get(str(values.get(f"{ACTOR}.loss_agg_mode")), "dapo"),
        "dtype": "bfloat16",
        "save_steps": max(0, as_count(values.get("trainer.save_freq"), -1)),
        "test_steps": test,
        "nodes": as_count(values.get("trainer.nnodes"), 1),
        "gpus_per_node": as_count(values.get("trainer.n_gpus_per_node"), 8),
    }


def _first(files: Any) -> str:
    return str(files[0] if isinstance(files, list) and files else files)


def _rewards(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    for section in _REWARD_SECTIONS:
        if path := values.get(f"{section}.path"):
            function = str(values.get(f"{section}.name") or "compute_score")
            reward = {"source": str(path), "function": function, "signature": "verl"}
            start = f"{section}.reward_kwargs."
            options = {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
            return [reward | ({"options": options} if options else {})]
    return [{"name": "accuracy"}]


def _owners(found: Launched, release: Release) -> dict[str, str]:
    """The settings that follow from the workload, the seeds and the engine -> what they follow from."""
    plain = {
        "model": {"source": BUILTIN_MODELS[0]},
        "data": {"source": BUILTIN_DATA[0]},
        "rewards": [{"name": "accuracy"}],
    }
    words = {name: value for name, value in found.workload.items() if value is not None}
    workload = Workload.model_validate(words | plain)
    settings = derived(workload, found.engine, found.seed, release, 1, False)
    return {key.lstrip("+"): owner for key, (owner, _) in settings.items()}


def _option(found: Launched, word: Argument, key: str, value: Any) -> None:
    bare = key.lstrip("+")
    if word.unknown or "oc.env" in str(value):
        names = ", ".join(word.unknown) or "an environment variable"
        found.left.append(Left(word.line, word.text, f"{names}: not set in the script", f"add options.{bare}"))
        return
    start = f"{ROLLOUT}.engine_kwargs."
    engine = bare.removeprefix(start).partition(".")[0] if bare.startswith(start) else ""
    target = found.engine_options.setdefault(engine, {}) if engine else found.options
    # A key that this release has, and an earlier one lacked.
    target[f"++{bare}" if key.startswith("+") else key] = value


def _not_kept(values: Mapping[str, Any], found: Launched, words: Sequence[Argument]) -> Iterator[Left]:
    """What the words could not say."""
    for key in ("data.train_files", "data.val_files"):
        files = values.get(key)
        if isinstance(files, list) and len(files) > 1:
            yield Left(_line(words, key), key, f"{len(files)} files: only the first is used", "join them into one file")
    if _given(words, _TOTAL) is None:
        epochs = values.get("trainer.total_epochs")
        text = f"trainer.total_epochs={epochs}: a comparison trains {found.workload['steps']} steps"
        yield Left(_line(words, "trainer.total_epochs"), "trainer.total_epochs", text, "change workload.steps")
    if unsaid := dict.fromkeys(key.rpartition(".")[2] for key in found.owners if _given(words, key) is None):
        yield Left(0, ", ".join(unsaid), "the script leaves these to verl, the workload decides them")
    if found.workload["rewards"] == [{"name": "accuracy"}]:
        why = "verl's own score by data_source: the experiment scores with `accuracy`"
        yield Left(0, "custom_reward_function", why, "give your function under workload.rewards (docs/rewards.md)")


def _line(words: Sequence[Argument], key: str) -> int:
    given = _given(words, key)
    return given.line if given else 0


LAUNCH = Launch(
    arguments=arguments,
    read=launch,
    settings=settings,
    checkpoints=Checkpoints("trainer.default_local_dir", True, "trainer.resume_mode", "disable", "auto"),
    not_compared=lambda key: (
        key in _TABLE["places"] or key.startswith(_REWARD_SECTIONS) or listed_part(key, BOOKKEEPING) is not None
    ),
)
