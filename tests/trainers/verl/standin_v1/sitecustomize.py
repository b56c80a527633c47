"""verl 0.9.1 with neither actor nor engine: Python imports this first, where it is on its path.

More is verl's own than beside `standin/`: agent loops, reward workers and the transfer queue between them, too.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `engine.patch` after verl's trainer was imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "verl.trainer.ppo.v1.trainer_base":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            import engine

            engine.patch(module)

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
