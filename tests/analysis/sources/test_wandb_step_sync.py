"""Rows of wandb that hold a step which is not theirs: transformers' callback lets wandb fill it in."""

from __future__ import annotations

from pathlib import Path

from analysis.sources.wandb_rows import HF_STEP, steps_of

# As TRL 1.16 logs two steps of two calls each; the rows between bear the step of the row before.
ROWS = (
    {"profiling/Time taken: GRPOTrainer.generate": 3.0, HF_STEP: 0},
    {"profiling/Time taken: GRPOTrainer.compute_loss": 1.0, HF_STEP: 0},
    {"train/step_time": 4.5, "train/reward": 0.5, HF_STEP: 1},
    {"profiling/Time taken: GRPOTrainer.generate": 2.0, HF_STEP: 1},
    {"profiling/Time taken: GRPOTrainer.generate": 2.5, HF_STEP: 1},
    {"profiling/Time taken: GRPOTrainer.compute_loss": 1.5, HF_STEP: 1, "train/epoch": 0.1},
    {"train/step_time": 6.5, "train/reward": 0.6, HF_STEP: 2},
)


def test_calls_count_for_the_step_that_they_led_to() -> None:
    file = Path("run-1abc.wandb")
    read = steps_of(((file, number, row) for number, row in enumerate(ROWS, start=1)), file.name)
    assert not read.verdicts and not read.repeated
    first, second = (read.records[step].scalars for step in (1, 2))
    assert first["profiling/Time taken: GRPOTrainer.generate"] == 3.0 and first["train/step_time"] == 4.5
    assert second["profiling/Time taken: GRPOTrainer.generate"] == 4.5
    assert second["profiling/Time taken: GRPOTrainer.compute_loss"] == 1.5 and second["train/reward"] == 0.6
