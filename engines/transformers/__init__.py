"""transformers' generation in the trainer's process."""

from engines.engine import Engine
from engines.transformers.reported import terms_in

TRANSFORMERS = Engine(
    name="transformers",
    label="transformers",
    aliases=("hf",),
    packages=("transformers",),
    in_trainer=True,
    reported=terms_in,
)
