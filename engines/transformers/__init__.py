"""transformers' own generation, in the trainer's process."""

from engines.engine import Engine

TRANSFORMERS = Engine(name="transformers", label="transformers", called=("hf",), in_trainer=True)
