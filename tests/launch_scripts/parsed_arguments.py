"""What a trainer's own parser makes of settings: `parsed_arguments.py TRAINER CASES OUT`, in a stack of that trainer.

CASES is JSON: name -> a list of a command's own words, or settings by name; OUT gets name -> the parser's fields.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

# What only a machine with GPUs and a hub could say.
NOT_HERE = ("model", "dataset", "external_plugins", "deepspeed", "report_to", "use_vllm", "vllm_mode", "fsdp", "bf16")


def main(trainer, cases, out):
    parse = {"swift": _swift, "trl": _trl}[trainer]
    results = {name: parse(given) for name, given in json.loads(cases.read_text(encoding="utf-8")).items()}
    out.write_text(json.dumps(results, default=str), encoding="utf-8")


def _fields(*parsed):
    return {field.name: getattr(one, field.name, None) for one in parsed for field in dataclasses.fields(one)}


def _swift(given):
    from swift.arguments import RLHFArguments
    from transformers import HfArgumentParser

    from trainers.swift.driver.arguments import command_line

    # Its __post_init__ would look for the model, the data and GPUs.
    RLHFArguments.__post_init__ = lambda self: None
    words = command_line(given) if isinstance(given, Mapping) else given
    # Names of 3.x are in the rest.
    parsed, _ = HfArgumentParser([RLHFArguments]).parse_args_into_dataclasses(args=words, return_remaining_strings=True)
    return _fields(parsed)


def _trl(given):
    from transformers import HfArgumentParser
    from trl import GRPOConfig, ModelConfig

    from trainers.swift.driver.arguments import command_line

    GRPOConfig.__post_init__ = ModelConfig.__post_init__ = lambda self: None
    words = command_line(given) if isinstance(given, Mapping) else given
    *parsed, rest = HfArgumentParser([GRPOConfig, ModelConfig]).parse_args_into_dataclasses(
        args=words, return_remaining_strings=True
    )
    return {**_fields(*parsed), "rest": rest}


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
