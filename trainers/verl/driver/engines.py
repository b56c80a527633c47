"""Asks verl's engines what they run with. They are in Ray's actors, and run when verl's loop begins.

Ray calls a function of ours in an actor (`__ray_call__`), so nothing of verl's is replaced. SGLang's server of 0.9.1
describes itself over HTTP.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.files import write_json
from common.retry import retry_io
from trainers.verl import hooks

ENGINE = "engine.json"
"""The file in the attempt's folder."""
_PATIENCE_S = 120.0


def report_engine(trainer: Any, folder: Path) -> None:
    """Write what the first of a trainer's engines reports; all of a run start alike."""
    rollout = trainer.config.actor_rollout_ref.rollout
    try:
        found = next(filter(None, (_asked(actor, str(rollout.name), str(rollout.dtype)) for actor in _actors(trainer))))
        retry_io(lambda: write_json(folder / ENGINE, found), "the attempt's files")
    except Exception as error:  # the run's numbers do not depend on it
        problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        print(f"the engine did not report what it runs with ({problem}); its log lines count", flush=True)


def _actors(trainer: Any) -> Iterator[Any]:
    if (manager := hooks.SERVERS.find(trainer)) is not None:
        yield from manager.server_handles
        return
    yield from getattr(hooks.SERVERS_0_4.find(trainer), "async_llm_servers", ())
    yield from hooks.WORKERS.get(trainer).workers


def _asked(actor: Any, engine: str, dtype: str) -> dict[str, Any] | None:
    import ray

    found: dict[str, Any] | None = ray.get(actor.__ray_call__.remote(_report_in, engine, dtype), timeout=_PATIENCE_S)
    if found is None and (address := hooks.SGLANG_ADDRESS.find(actor)) is not None:
        from engines.sglang.settings import server_settings

        found = server_settings(*ray.get(address.remote(), timeout=_PATIENCE_S))
    return found


def _report_in(actor: Any, engine: str, dtype: str) -> dict[str, Any] | None:
    """Runs in an actor: what its engine reports; None without one."""
    workers = getattr(actor, "worker_dict", {}).values()
    for holder in (actor, *(worker.rollout for worker in workers if hasattr(worker, "rollout"))):
        for hook in (hooks.ENGINE, hooks.ENGINE_0_4, hooks.SGLANG_0_4):
            if (found := hook.find(holder)) is not None:
                module = importlib.import_module(f"engines.{engine}.settings")
                settings: dict[str, Any] = module.engine_settings(found, dtype)
                return settings
    return None
