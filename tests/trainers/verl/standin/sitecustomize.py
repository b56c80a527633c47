"""Puts workers that need no GPU in the place of verl's: Python imports this first, where it is on its path.

Everything else is verl's own: its TaskRunner, datasets, rewards, fit loops, advantages, metrics and loggers.
"""

import importlib.abc
import importlib.util
import sys


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `workers.patch_<…>` after a module of verl's was imported."""

    patches = {  # noqa: RUF012
        "verl.trainer.ppo.ray_trainer": "patch_ray_trainer",
        "verl.trainer.ppo.v1.trainer_base": "patch_v1",
        "verl.trainer.ppo.v1.agent_loop_tq": "patch_agent_loop",
    }

    def find_spec(self, name, path, target=None):
        if name not in self.patches:
            return None
        patch = self.patches.pop(name)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        loader = spec.loader
        run = loader.exec_module

        def exec_module(module):
            run(module)
            import workers

            getattr(workers, patch)(module)

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
