"""Checks the built stack trl-lora-transformers-cpu; run by `python -m workflow.stacks build`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import TRL_CPU
from _verify import Probe, main


def adapter_merges() -> Any:
    """A layer of ones with an adapter of B = 1: what it adds, merged or not, and nothing once it is taken out."""
    import torch
    from peft import LoraConfig, get_peft_model

    layer = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
    torch.nn.init.ones_(layer[0].weight)
    model = get_peft_model(layer, LoraConfig(r=1, lora_alpha=4, target_modules=["0"]))
    for name, weight in model.named_parameters():
        if "lora" in name:
            torch.nn.init.ones_(weight)

    def out() -> float:
        return float(model(torch.ones(1, 2)).sum())

    apart = out()
    model.merge_adapter()
    merged = out()
    model.unmerge_adapter()
    with model.disable_adapter():
        return [apart, merged, out()]


LORA = [Probe("peft merges an adapter", "peft", [20.0, 20.0, 4.0], adapter_merges)]

if __name__ == "__main__":
    sys.exit(main(TRL_CPU + LORA))
