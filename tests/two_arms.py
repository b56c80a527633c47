"""The default experiment with two of its arms, the older ones: what most tests of plans and of runs need."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
ARMS = ("transformers", "vllm")


def two_arms():
    """As YAML gives it; the baseline is transformers."""
    raw = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    return raw | {"baseline": ARMS[0], "arms": {name: raw["arms"][name] for name in ARMS}}
