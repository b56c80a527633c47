"""LMDeploy's facts. Only ms-swift up to 3.4 uses it."""

from pathlib import Path

from engines.engine import engine_in

LMDEPLOY = engine_in(Path(__file__).parent)
