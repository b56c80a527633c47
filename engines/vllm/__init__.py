"""vLLM's facts, and `hooks`, the names inside it that our code uses."""

from pathlib import Path

from engines.engine import engine_in
from engines.vllm.reported import terms_in
from node.hooks import Hooks

hooks = Hooks(Path(__file__).parent)
VLLM = engine_in(Path(__file__).parent, terms_in)
