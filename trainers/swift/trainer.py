"""ms-swift: its runs can be read; it is not driven from here."""

from trainers.protocol import LogFormat, Trainer
from trainers.swift import logging_jsonl
from trainers.swift.timers import SWIFT_4_6
from trainers.trl import console
from trainers.trl.trainer import KEYS, SERVER, TRAINER_STATE

SWIFT = Trainer(
    name="swift",
    label="ms-swift",
    engines=("vllm", "transformers"),
    package="ms-swift",
    keys=KEYS,
    marks=("use_vllm",),
    trees=(SWIFT_4_6,),
    native="native",
    formats=(
        LogFormat(
            console.SWIFT,
            "ms-swift's console log, with lines {'loss': ..., 'global_step/max_steps': '3/25'}",
            console.read_trl_console,
            is_step=lambda part: console.looks_like_trainer((part,)) == console.SWIFT,
            step_alone=True,
        ),
        LogFormat(
            logging_jsonl.FORMAT,
            "ms-swift's logging.jsonl",
            logging_jsonl.read_swift_jsonl,
            is_row=lambda row: console.SWIFT_STEP in row or any(str(name).startswith("train_speed(") for name in row),
            step_alone=True,
        ),
        TRAINER_STATE,
    ),
    server=SERVER,
)
