"""Composes verl's settings from verl's own files as Hydra does, and has verl validate them, without a GPU."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.dotted import lookup
from common.errors import UserError
from node.exit_codes import one_line
from node.hardware import importing
from node.tracker import has_wandb
from trainers.verl.driver.overrides import key_problem, kind_problem, leaves, override, sections_above
from trainers.verl.releases import release_named

_CONFIG = "ppo_trainer"


def job_overrides(
    version: str,
    *,
    train_files: str,
    val_files: str,
    model: str,
    checkpoints: str,
    project: str,
    run_id: str,
    reward_file: str,
    reward_kwargs: Mapping[str, Any] | None = None,
) -> list[str]:
    """The overrides that only the job on the node knows; `ValueError` for values that Hydra cannot read."""
    release = release_named(version)
    reward = release.reward_key
    settings: dict[str, Any] = {
        "data.train_files": train_files,
        "data.val_files": val_files,
        "actor_rollout_ref.model.path": model,
        f"{reward}.path": reward_file,
        f"{reward}.name": "compute_score",
        "trainer.project_name": project,
        "trainer.experiment_name": run_id,
        "trainer.default_local_dir": checkpoints,
        "trainer.logger": [name for name in release.loggers if name != "wandb" or has_wandb()],
        "trainer.resume_mode": "auto",
    }
    written = [override(key, value) for key, value in settings.items()]
    return [*written, *([override(f"+{reward}.reward_kwargs", reward_kwargs)] if reward_kwargs else [])]


def compose(version: str, overrides: Sequence[str]) -> dict[str, Any]:
    """verl's configuration with overrides, as verl starts with it: nested, every reference resolved.

    `UserError` if another version of verl is installed, for an unknown key (with the nearest one, or the missing `+`),
    for a key that is added but exists, and for a value of the wrong type.
    """
    folder = _config_folder(version)
    base = _packaged(folder)
    known = {name for key in flat(base) for name in (key, *sections_above(key))}
    keys = []
    for text in overrides:
        parsed = _parsed(text)
        keys.append(parsed.key_or_group)
        _require_known(parsed, text, known, version)
    composed = _composed(folder, list(overrides))
    for key in keys:
        _require_same_kind(key, base, composed)
    return composed


def check(version: str, config: Mapping[str, Any]) -> None:
    """`UserError` with what verl's own validation says of settings that it refuses.

    It imports torch. Where that fails, as on a head node without the libraries of a GPU, verl validates on the node.
    """
    from omegaconf import OmegaConf

    try:
        with importing():
            validate = release_named(version).validation()
        if validate is not None:
            validate(OmegaConf.create(dict(config)))
    except (ImportError, OSError, RuntimeError) as error:  # also of an engine that it imports for a LoRA adapter
        print(f"verl {version} validates its settings only on the node: {one_line(error)}", file=sys.stderr)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        said = one_line(error) or str(at.line)
        place = "/".join(Path(at.filename).parts[-3:])
        raise UserError(f"verl {version} would not run with these settings: {said} ({place}:{at.lineno})") from None


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings one by one, under dotted keys; empty sections and lists are values."""
    return dict(leaves(config))


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """verl's version and its flat settings; `UserError` for settings that it refuses."""
    version = trainer_args["version"]
    config = compose(version, trainer_args["overrides"])
    check(version, config)
    return version, flat(config)


def _config_folder(version: str) -> Path:
    try:
        installed = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"verl is not installed in {sys.prefix}; build the stack of the arm again") from None
    if installed != version:
        raise UserError(f"the settings are for verl {version}, but {sys.prefix} has verl {installed}; build it again")
    # find_spec of the package itself does not import it.
    spec = importlib.util.find_spec("verl")
    folders = list(spec.submodule_search_locations or []) if spec else []
    folder = Path(folders[0]) / "trainer" / "config" if folders else Path()
    if not (folder / f"{_CONFIG}.yaml").is_file():
        raise UserError(f"verl {version} in {sys.prefix} lacks {folder / _CONFIG}.yaml; build the stack again")
    return folder


@functools.cache
def _packaged(folder: Path) -> dict[str, Any]:
    return _composed(folder, [])


def _composed(folder: Path, overrides: list[str]) -> dict[str, Any]:
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with hydra.initialize_config_dir(config_dir=str(folder), version_base=None):
            config = hydra.compose(_CONFIG, overrides=overrides)
        resolved = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"verl's configuration cannot be composed: {one_line(error)}") from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


@functools.cache
def _parsed(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException:
        raise UserError(f"{text!r} cannot be read as an override of verl's configuration; write key=value") from None


def _require_known(override: Any, text: str, known: set[str], version: str) -> None:
    key = override.key_or_group
    if override.is_delete() or override.is_sweep_override():
        raise UserError(f"{text}: only key=value, +key=value and ++key=value can be given")
    if override.is_force_add():
        return
    if problem := key_problem(key, override.is_add(), known, version):
        raise UserError(f"{text}: {problem}")


def _require_same_kind(key: str, base: Mapping[str, Any], composed: Mapping[str, Any]) -> None:
    was, now = lookup(base, key), lookup(composed, key)
    if isinstance(was, dict) and isinstance(now, dict):
        for inner in was.keys() & now.keys():
            _require_same_kind(f"{key}.{inner}", base, composed)
        return
    if problem := kind_problem(key, was, now):
        raise UserError(problem)
