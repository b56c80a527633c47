"""verl 0.9.1 with neither actor nor engine: Python imports this first, where it is on its path.

More is verl's own than beside `standin/`: agent loops, reward workers and the transfer queue between them, too.
"""

import importlib.abc
import importlib.util
import sys


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `engine.patch` after verl's trainer was imported."""

    def find_spec(self, name, path, target=None):
        if name != "verl.trainer.ppo.v1.trainer_base":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        loader = spec.loader
        run = loader.exec_module

        def exec_module(module):
            run(module)
            import engine

            engine.patch(module)

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
