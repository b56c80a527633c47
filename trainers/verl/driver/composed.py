"""Composes verl's settings from verl's own files as Hydra does, and has verl validate them, without a GPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.dotted import flatten
from common.errors import UserError
from engines import engine_named, require_options
from node.exit_codes import one_line
from node.hardware import importing
from node.tracker import has_wandb
from trainers.verl.driver.overrides import ROLLOUT, override
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
    reward = release_named(version).reward_key
    settings: dict[str, Any] = {
        "data.train_files": train_files,
        "data.val_files": val_files,
        "actor_rollout_ref.model.path": model,
        f"{reward}.path": reward_file,
        f"{reward}.name": "compute_score",
        "trainer.project_name": project,
        "trainer.experiment_name": run_id,
        "trainer.default_local_dir": checkpoints,
        "trainer.logger": ["console", *(["wandb"] if has_wandb() else [])],
    }
    written = [override(key, value) for key, value in settings.items()]
    return [*written, *([override(f"+{reward}.reward_kwargs", reward_kwargs)] if reward_kwargs else [])]


def compose(version: str, overrides: Sequence[str]) -> dict[str, Any]:
    """verl's configuration with overrides, as verl starts with it: nested, every reference resolved.

    `UserError` if another version of verl is installed, and with Hydra's message for an override that it refuses.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with hydra.initialize_config_dir(config_dir=str(_config_folder(version)), version_base=None):
            config = hydra.compose(_CONFIG, overrides=list(overrides))
        resolved = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"verl's configuration cannot be composed: {one_line(error)}") from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def check(version: str, config: Mapping[str, Any]) -> None:
    """`UserError` with what verl's own validation says of settings that it refuses.

    It imports torch. Where that fails, as on a head node without the libraries of a GPU, verl validates on the node. Of
    RuntimeErrors only verl's own are refusals: another package, such as an engine that it imports for a LoRA adapter,
    raises them for what this machine lacks.
    """
    from omegaconf import OmegaConf

    try:
        with importing():
            release_named(version).validate(OmegaConf.create(dict(config)))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        verls_own = Path(at.filename).is_relative_to(_config_folder(version).parents[1])
        if isinstance(error, ImportError | OSError) or (isinstance(error, RuntimeError) and not verls_own):
            print(f"verl {version} validates its settings only on the node: {one_line(error)}", file=sys.stderr)
            return
        said = one_line(error) or str(at.line)
        place = "/".join(Path(at.filename).parts[-3:])
        raise UserError(f"verl {version} would not run with these settings: {said} ({place}:{at.lineno})") from None


def check_engine_options(version: str, rollout: Mapping[str, Any]) -> None:
    """`UserError` for an option in `engine_kwargs` that the engine lacks: it would end when it is built.

    Where the engine cannot be imported, as on a head node without the libraries of a GPU, it says so on the node.
    """
    engine, release = str(rollout["name"]), release_named(version)
    options = (rollout.get("engine_kwargs") or {}).get(engine) or {}
    given = [name for name, value in options.items() if value is not None]
    if engine in release.engines_without_options:
        return
    try:
        require_options(engine_named(engine), given, f"{ROLLOUT}.engine_kwargs.{engine}.", release.serves)
    except (ImportError, OSError, RuntimeError) as error:
        print(f"{engine} checks its engine_kwargs only on the node: {one_line(error)}", file=sys.stderr)


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """verl's version and its flat settings; `UserError` for settings that it refuses."""
    version = trainer_args["version"]
    config = compose(version, trainer_args["overrides"])
    check(version, config)
    check_engine_options(version, config["actor_rollout_ref"]["rollout"])
    return version, flatten(config)


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
