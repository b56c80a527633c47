"""transformers' generation in the trainer's process."""

from engines.engine import Engine

TRANSFORMERS = Engine(
    name="transformers", label="transformers", aliases=("hf",), packages=("transformers",), in_trainer=True
)
