"""SGLang's facts, and `hooks`, the names inside it that our code uses."""

from pathlib import Path

from engines.engine import engine_in
from engines.sglang.reported import terms_in
from node.hooks import Hooks

hooks = Hooks(Path(__file__).parent)
SGLANG = engine_in(Path(__file__).parent, terms_in)
