"""Writes small logs of engines of known speed, in the forms that people have."""

import json
import zlib
from pathlib import Path

import numpy as np

TIMERS = {"gen": 0.7, "update_actor": 0.25}
"""Shares of a step in the timers of a verl log; the rest is in no timer."""


def chance(*names):
    """Random numbers that belong to these names."""
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def noise(rng, number, share=0.01):
    return np.exp(rng.normal(0.0, share, number))


def responses(rng, steps, number=64, typical=650.0, cap=4000.0):
    """The lengths of each step's responses; `typical` is their median, a number or one for each step."""
    medians = np.broadcast_to(typical, steps)
    return [np.minimum(cap, median * np.exp(rng.normal(0.0, 0.6, number))).round() for median in medians]


def seconds_of(lengths, fixed=5.0):
    """Seconds of each step of an engine of speed 1: it waits for the longest response, and for all tokens."""
    return np.array([fixed + of.sum() / 4000 + of.max() / 200 for of in lengths])


def verl(file, seconds, lengths=None, *, first=1, prompt=100.0, reward=0.25, timers=None, more=None, head=""):
    """Write a verl console: one line a step. `timers` and `more` have a dictionary for each step."""
    lines, prompts = [], np.broadcast_to(prompt, len(seconds))
    for place, total in enumerate(seconds):
        pairs = {}
        if lengths is not None:
            of = lengths[place]
            pairs |= {
                "response_length/mean": of.mean(),
                "response_length/max": of.max(),
                "response_length/min": of.min(),
            }
            total_tokens = of.sum() + prompts[place] * len(of)
            pairs |= {"prompt_length/mean": prompts[place], "perf/total_num_tokens": total_tokens}
        pairs |= {"critic/score/mean": reward, "critic/rewards/mean": reward, "actor/grad_norm": 0.1}
        own = timers[place] if timers else {name: share * total for name, share in TIMERS.items()}
        pairs |= {f"timing_s/{name}": value for name, value in own.items()} | {"timing_s/step": total}
        pairs |= more[place] if more else {}
        shown = " - ".join(f"{name}:{value:.3f}" for name, value in pairs.items())
        lines.append(f"(TaskRunner pid=1) step:{first + place} - {shown}\n")
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(head + "".join(lines), encoding="utf-8")


def verl_file_logger(file, seconds, first=1):
    """Write the same steps as verl's file logger does."""
    rows = []
    for step, total in enumerate(seconds, first):
        timers = {f"timing_s/{name}": share * total for name, share in TIMERS.items()}
        data = {"training/global_step": step, **timers, "timing_s/step": total, "critic/score/mean": 0.25}
        rows.append(json.dumps({"step": step, "data": data}) + "\n")
    Path(file).write_text("".join(rows), encoding="utf-8")


def trl(file, seconds, lengths, prompt=100.0, reward=0.21, every=1):
    """Write a TRL console: a dictionary for every `every` steps; num_tokens counts prompts and responses so far."""
    seen, rows = 0.0, []
    for place, of in enumerate(lengths):
        seen += of.sum() + prompt * len(of)
        if (place + 1) % every:
            continue
        window = lengths[place + 1 - every : place + 1]
        row = {
            "loss": 0.01,
            "grad_norm": 0.45,
            "learning_rate": 1e-06,
            "num_tokens": float(seen),
            "completions/mean_length": round(float(np.mean([one.mean() for one in window])), 3),
            "completions/max_length": float(np.mean([one.max() for one in window])),
            "completions/clipped_ratio": 0.0,
            "reward": reward,
            "reward_std": 0.1,
            "kl": 0.001,
            "step_time": round(float(np.mean(seconds[place + 1 - every : place + 1])), 4),
            "epoch": round((place + 1) / 100, 2),
        }
        rows.append(f"{row}\n")
    Path(file).write_text("".join(rows), encoding="utf-8")


def trl_bars(file, seconds):
    """Write a TRL console with bars of whole seconds, and rows without step_time."""
    text, passed = "", 0.0
    for step, took in enumerate(seconds, 1):
        passed += took
        whole, of = int(passed), len(seconds)
        clock = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        text += f"\r {100 * step // of}%|###       | {step}/{of} [{clock}<00:00, {took:.2f}s/it]\n"
        row = {"loss": round(took % 0.7, 4), "learning_rate": 1e-06, "reward": round(0.4 + took % 0.1, 4)}
        text += f"{row | {'completion_length': 117.0 + step % 3, 'epoch': step / 400}}\n"
    Path(file).write_text(text, encoding="utf-8")


def command(engine, gpus=8, **more):
    """The lines of a log that show the release and the command of a verl training."""
    words = {
        "actor_rollout_ref.rollout.name": engine,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B",
        "data.train_batch_size": 8,
        "trainer.n_gpus_per_node": gpus,
        "trainer.nnodes": 1,
        **more,
    }
    shown = " ".join(f"{name}={value}" for name, value in words.items())
    return f"verl==0.5.0\n+ python3 -m verl.trainer.main_ppo {shown}\n"


def table(file, **columns):
    """Write a CSV with these columns."""
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    Path(file).write_text("\n".join(rows) + "\n", encoding="utf-8")


def numbered(values, digits=3, each=1):
    """Columns `step` and `step_time`; the counter goes `each` further for a step."""
    return {
        "step": [each * (place + 1) for place in range(len(values))],
        "step_time": [round(float(value), digits) for value in values],
    }


def arms(runs, write, ending="log"):
    """Write logs of arms `a` and `b` with `write(file, arm, rng)`; the words of the command that compares them.

    `runs` is the number of runs of each arm, or one number for both.
    """
    words = []
    for place, arm in enumerate("ab"):
        number = runs if isinstance(runs, int) else runs[place]
        files = [f"{arm}{run}.{ending}" for run in range(number)]
        for file in files:
            write(file, arm, chance(file))
        words.append(f"{arm}={','.join(files)}")
    return words


def at_speed(times, steps=25, **written):
    """A writer of verl logs with lengths: arm `b` is `times` as fast as `a`."""

    def write(file, arm, rng):
        lengths = responses(rng, steps)
        took = seconds_of(lengths) * noise(rng, steps) / (times if arm == "b" else 1.0)
        verl(file, took, lengths, **written)

    return write


def of(arm, a, b):
    """The value of this arm."""
    return a if arm == "a" else b
