"""Puts stand-ins in the place of verl's parts that need a GPU: Python imports this first, where it is on its path.

STANDIN has, by module of verl's, the function of a stand-in's file that is called after the module was imported. All
else is verl's own: its TaskRunner, datasets, rewards, fit loops, advantages, metrics and loggers.
"""

import importlib
import importlib.abc
import importlib.util
import json
import os
import sys


class _Finder(importlib.abc.MetaPathFinder):
    patches = json.loads(os.environ.get("STANDIN", "{}"))

    def find_spec(self, name, path, target=None):
        if name not in self.patches:
            return None
        file, patch = self.patches.pop(name)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        loader = spec.loader
        run = loader.exec_module

        def exec_module(module):
            run(module)
            getattr(importlib.import_module(file), patch)(module)

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
