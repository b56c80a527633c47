"""ms-swift: `hooks` are the names inside it that our driver uses."""

from pathlib import Path

from node.hooks import Hooks

hooks = Hooks(Path(__file__).parent)
