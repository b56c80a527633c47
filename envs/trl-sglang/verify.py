"""Checks the built stack trl-sglang; run at its build, and with --gpu on a compute node."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _gpu import compiled_function
from _probes import CUDA_PROBES, TRL_CPU, VERL_SGLANG, driver, has_names, has_parameters, version_of
from _verify import Probe, main, pin

# What our driver says to SGLang (engines/sglang/gpu.py), beside an arm's own options.
ARGUMENTS = ["model_path", "dtype", "random_seed", "skip_tokenizer_init", "log_level"]
ARGUMENTS += ["mem_fraction_static", "enable_memory_saver"]

PROBES = [
    *CUDA_PROBES,
    *(probe for probe in TRL_CPU if probe.name != "torch is a CPU build"),
    *VERL_SGLANG,
    Probe("torch's version", "torch", pin("torch", public=True), version_of("torch", public=True)),
    Probe("peft's version", "peft", pin("peft"), version_of("peft")),
    Probe("torch reaches the GPUs", "torch", "works", driver(), gpu=True),
    Probe(
        "ServerArgs takes what the driver gives",
        "sglang",
        ARGUMENTS,
        has_parameters("sglang.srt.server_args:ServerArgs", *ARGUMENTS),
        gpu=True,
    ),
    Probe(
        "sglang hands tensors from process to process by their GPU",
        "sglang",
        ["monkey_patch_torch_reductions"],
        has_names("sglang.srt.utils.patch_torch", "monkey_patch_torch_reductions"),
        gpu=True,
    ),
    Probe(
        "torch.compile agrees with torch",
        "triton",
        True,
        compiled_function(),
        gpu=True,
        off_by=("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"),
    ),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
