"""transformers' generation in the trainer's process."""

from engines.engine import Engine

TRANSFORMERS = Engine(name="transformers", label="transformers", aliases=("hf",), in_trainer=True)
