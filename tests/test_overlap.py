"""Loops that generate while they train are known without a configuration, and are never compared at equal work."""

import json

import numpy as np
import pytest

from workflow.cli import main


def log(path, gen_share, seed, **more):
    """verl's lines of 20 steps whose lengths, prompts and responses are all known."""
    draw, lines = np.random.default_rng(seed), []
    for step in range(1, 21):
        lengths = draw.lognormal(6, 0.5, 64).round()
        seconds = (10 + lengths.sum() / 4000) * draw.normal(1, 0.01)
        scalars = {
            "response_length/mean": lengths.mean(),
            "response_length/max": lengths.max(),
            "prompt_length/mean": 100.0,
            "perf/total_num_tokens": lengths.sum() + 6400,
            "timing_s/gen": gen_share * seconds,
            "timing_s/update_actor": 0.2 * seconds,
            "timing_s/step": seconds,
            **more,
        }
        lines.append(f"step:{step} - " + " - ".join(f"{name}:{value:.6f}" for name, value in scalars.items()))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("gen_share", "more", "why"),
    [
        (0.7, {}, ""),
        (0.05, {}, "generation takes 5% of its step"),
        (0.7, {"training/off_policy/trajectory_staleness/mean": 0.5}, "trajectory_staleness/mean"),
        (0.7, {"training/off_policy/trajectory_staleness/mean": 0.0}, ""),
        # One version sampled each response: verl 0.9.1's synchronous loop logs it, too.
        (0.7, {"training/off_policy/trajectory_spans/mean": 1.0}, ""),
    ],
)
def test_generation_beside_training_is_no_equal_work(tmp_path, monkeypatch, capsys, gen_share, more, why):
    monkeypatch.chdir(tmp_path)
    for n in range(2):
        log(tmp_path / f"a{n}.log", 0.7, n)
        log(tmp_path / f"b{n}.log", gen_share, 5 + n, **more)
    assert main(["compare", "a=a0.log,a1.log", "b=b0.log,b1.log", "--verdict-only", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["arms"][0]
    assert (found["ratios"][0]["unit"] == "at equal work") is not bool(why)
    assert not why or any(why in caveat["text"] for caveat in found["caveats"])
