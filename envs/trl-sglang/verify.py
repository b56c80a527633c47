"""Checks the built stack trl-sglang; run at its build, and with --gpu on a compute node."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import VERL_SGLANG, has_parameters
from _verify import Probe, main

ENVS = Path(__file__).resolve().parents[1]
# What is checked of TRL on a GPU, whatever its engine (stack.yaml: verify_code).
TRL = runpy.run_path(str(ENVS / "trl-transformers" / "verify.py"))["PROBES"]

# What our driver says to SGLang (engines/sglang/client.py), beside an arm's own options.
ARGUMENTS = ["model_path", "dtype", "random_seed", "skip_tokenizer_init", "log_level"]
ARGUMENTS += ["mem_fraction_static", "enable_memory_saver", "dist_init_addr", "host", "port", "api_key"]

PROBES = [
    *TRL,
    *VERL_SGLANG,
    Probe(
        "ServerArgs takes what the driver gives",
        "sglang",
        ARGUMENTS,
        has_parameters("sglang.srt.server_args:ServerArgs", *ARGUMENTS),
        gpu=True,
    ),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
