"""Steps as NeMo-RL, OpenRLHF and slime print them (printed/), with figures of public runs where there are any.

nemo-rl.txt is the block of a public guide to it on Google Kubernetes Engine (8 H100, Qwen2.5-1.5B, GSM8K). slime.txt
has the figures of a public page on its metrics; THUDM/slime's pull request 1102 shows the same names. No public console
with OpenRLHF's timers was found: openrlhf.txt has its names and their order by its source.
"""

from functools import partial
from pathlib import Path

PRINTED = Path(__file__).with_name("printed")


def printed(name, step):
    """What a trainer prints of one step."""
    return (PRINTED / name).read_text(encoding="utf-8").replace("<step>", str(step))


nemo_block = partial(printed, "nemo-rl.txt")
openrlhf_line = partial(printed, "openrlhf.txt")
slime_lines = partial(printed, "slime.txt")
