"""Made-up run folders with known timings: test data, never shipped as results.

They stand in for what the jobs write (docs/files.md), so that the analysis is tested without training.
"""

import json
import random

from analysis.collect import collect_run, main
from analysis.steps import read_steps, write_steps
from common.files import fingerprint_of

INPUTS = "step/training_step/prepare_inputs"
INPUTS_SHA256 = {"data_sha256": "d" * 64, "model_sha256": "e" * 64}


def phases_from_leaves(leaves, slack_s=0.0):
    """Leaves' seconds with every parent added as its children's sum plus `slack_s`."""
    paths = {"/".join(p.split("/")[: i + 1]) for p in leaves for i in range(len(p.split("/")))}
    filled = dict(leaves)
    for path in sorted(paths - set(leaves), key=lambda p: -p.count("/")):
        children = [v for k, v in filled.items() if k.rsplit("/", 1)[0] == path and "/" in k]
        filled[path] = sum(children) + slack_s
    return dict(sorted(filled.items()))


def leaves(gen_s, rest_s=0.1, sync_s=None):
    found = {
        f"{INPUTS}/generate": gen_s,
        f"{INPUTS}/old_log_prob": rest_s,
        f"{INPUTS}/ref_log_prob": rest_s,
        f"{INPUTS}/rewards/accuracy": rest_s / 10,
        f"{INPUTS}/rewards/format": rest_s / 20,
        "step/training_step/compute_loss/policy_log_prob": rest_s,
        "step/training_step/backward": 2 * rest_s,
        "step/optimizer_step": rest_s / 2,
    }
    if sync_s is not None:
        found[f"{INPUTS}/sync_weights"] = sync_s
    return found


def metrics_row(step, phases, **more):
    lengths = more.pop("lengths", [10, 20, 30, 40])
    scalars = {
        "train/reward": 0.01 * step,
        "response_tokens": sum(lengths),
        "prompt_tokens": 4 * len(lengths),
        **more.pop("scalars", {}),
    }
    return {
        "step": step,
        "time": 1.7e9 + step,
        "resumed": more.pop("resumed", False),
        "phases": phases,
        "scalars": scalars,
        "samples": {"response_length": lengths},
        **more,
    }


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_run(
    results, run_id, arm, seed, attempts, *, engine="vllm", factors=None, hardware=None, spec_more=None, done_more=None
):
    """A run folder whose attempts hold the given metrics rows."""
    run_dir = results / "runs" / run_id
    spec = {
        "spec_version": 1, "experiment": results.name, "run_id": run_id, "arm": arm, "trainer": "trl", "engine": engine,
        "stack": f"trl-{engine}-cpu", "seed": seed, "factors": factors or {},
        "workload": {"steps": 12, "temperature": 0.9, "max_response_length": 64}, "options": {},
        "env": {"OMP_NUM_THREADS": "2"},
        "trainer_args": {"use_vllm": engine == "vllm", "learning_rate": 1e-6, "seed": seed},
        "lock_id": "0123456789ab" if engine == "vllm" else "ba9876543210", "inputs_id": "89abcdef", **(spec_more or {}),
    }  # fmt: skip
    fingerprint = spec["fingerprint"] = fingerprint_of(spec)
    write_json(run_dir / "spec.json", spec)
    for number, rows in enumerate(attempts, start=1):
        folder = run_dir / "attempts" / str(number)
        inputs = (done_more or {}).get("inputs", INPUTS_SHA256)
        order = {"attempt": number, "run_id": run_id, "fingerprint": fingerprint, "inputs_sha256": inputs}
        write_json(folder / "attempt.json", order)
        write_rows(folder / "metrics.jsonl", rows)
    steps = [row["step"] for rows in attempts for row in rows]
    finished_before = len(list(results.glob("runs/*/done.json")))  # one run after the other
    done = {
        "run_id": run_id,
        "fingerprint": fingerprint,
        "attempt": len(attempts),
        "first_step": 1,
        "last_step": max(steps, default=0),
        "steps": len(set(steps)),
        "started": 1.7e9 + 100 * finished_before,
        "finished": 1.7e9 + 100 * finished_before + 100,
        "inputs": INPUTS_SHA256,
        "versions": {
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "trl": "1.16.0",
            **({"vllm": "0.31.0"} if engine == "vllm" else {}),
        },
        "hardware": hardware
        or {"host": "node1", "cpu": "Some CPU", "cpus": 2, "threads": 2, "memory_gib": 23.5, "gpus": []},
        "resolved": {"output_dir": f"runs/{run_id}/checkpoints", "dtype": "float32"},
        **(done_more or {}),
    }
    write_json(run_dir / "done.json", done)
    return run_dir


def collected(run_dir):
    """The rows and the facts of the file that `collect` writes of a run."""
    out = run_dir / "steps.parquet"
    assert main([str(run_dir), "--out", str(out)]) == 0
    table, metadata = read_steps(out)
    return table.to_pandas(), metadata


def fingerprint_in(spec):
    """The fingerprint of a run that was made; of one that was not, some text."""
    return json.loads(spec.read_text())["fingerprint"] if spec.is_file() else "none"


def write_plan(results, arms, runs, warmup_steps, **more):
    baseline = more.pop("baseline", next(iter(arms)))
    plan = {
        "experiment": results.name,
        "description": "Made-up timings for a test.",
        "baseline": baseline,
        "arms": arms,
        "warmup_steps": warmup_steps,
        "runs": runs,
        "fingerprints": {run: fingerprint_in(results / "runs" / run / "spec.json") for run in runs},
        **more,
    }
    write_json(results / "plan.json", plan)
    write_json(
        results / "inputs" / "89abcdef" / "inputs.json",
        {
            "data": {"path": "data.parquet", "sha256": "d" * 64, "rows": 512, "source": "builtin:arithmetic"},
            "model": {"path": "model", "sha256": "e" * 64, "source": "builtin:tiny-qwen2", "parameters": 1000},
        },
    )
    return results / "plan.json"


def realistic(
    results, arms, *, seeds=3, steps=12, warmup_steps=2, factors=None, extra_scalars=0, responses=16, run_ids=None
):
    """Noisy runs of `arms` (name -> engine, generation seconds), collected; the plan's path."""
    ids = []
    for f, combination in enumerate(factors or [{}]):
        for name, (engine, gen_s) in arms.items():
            for seed in range(seeds):
                random_ = random.Random(f"{f}-{name}-{seed}")
                rows = []
                for step in range(1, steps + 1):
                    lengths = [int(random_.betavariate(2, 2 + step / steps) * 62) + 2 for _ in range(responses)]
                    slow = 1.8 if step == 1 else 1.15 if step == 2 else 1.0
                    gen = gen_s * slow * (0.4 + max(lengths) / 90) * random_.uniform(0.95, 1.1) * (1 + 0.3 * f)
                    rest = random_.uniform(0.09, 0.12)
                    sync = random_.uniform(0.02, 0.04) if engine == "vllm" else None
                    phases = phases_from_leaves(leaves(gen, rest, sync), slack_s=random_.uniform(0.004, 0.01))
                    more = {f"train/metric_{i}": random_.random() for i in range(extra_scalars)}
                    more["train/reward"] = 0.3 + 0.03 * step + random_.gauss(0, 0.05)
                    rows.append(metrics_row(step, phases, lengths=lengths, scalars=more))
                suffix = f"-f{f}" if factors else ""
                run_id = run_ids(len(ids)) if run_ids else f"{name}{suffix}-s{seed}"
                run_dir = write_run(results, run_id, name, seed, [rows], engine=engine, factors=combination)
                write_steps(collect_run(run_dir), run_dir / "steps.parquet")
                ids.append(run_id)
    described = {
        name: {"trainer": "trl", "engine": engine, "stack": f"trl-{engine}-cpu", "options": {}}
        for name, (engine, _) in arms.items()
    }
    return write_plan(results, described, ids, warmup_steps)
