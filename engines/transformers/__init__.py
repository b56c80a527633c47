"""transformers' generation in the trainer's process."""

from pathlib import Path

from engines.engine import engine_in
from engines.transformers.reported import terms_in

TRANSFORMERS = engine_in(Path(__file__).parent, terms_in)
