"""Made-up runs of verl whose GPUs and model are known: test data, never shipped as results."""

import json

import make_results

from analysis.collect import main
from analysis.runs import read_run

ROLLOUT = "actor_rollout_ref.rollout"
PHI = "microsoft/Phi-4-reasoning-plus"
SXM = [{"name": "NVIDIA H100 80GB HBM3", "memory_gib": 79.1}] * 8
WORKLOAD = {
    "model": {"source": PHI}, "batch_size": 64, "num_generations": 4, "max_response_length": 31744, "nodes": 1,
    "gpus_per_node": 8, "gpu": "H100-80GB", "dtype": "bfloat16",
}  # fmt: skip
IMPORT = {
    **{"sources": ["a.log"], "format": "verl-console", "version": "0.4.1", "mode": "", "gpu": "H100-80GB", "nodes": 1},
    **{"gpus_per_node": 8, "tensor_parallel": 2, "model": PHI, "batch_size": 16, "max_response_length": 31744},
}
# The article's step 3 with SGLang, as its log prints it.
ARTICLE = {
    "timing_s/generate_sequences": 380.170,
    "timing_s/reshard": 2.311,
    "timing_s/gen": 382.913,
    "timing_s/reward": 1.198,
    "timing_s/old_log_prob": 4.186,
    "timing_s/ref": 3.621,
    "timing_s/adv": 0.002,
    "timing_s/update_actor": 16.263,
    "timing_s/step": 408.190,
}
LOGGED = {
    "response_length/mean": 17435.688,
    "response_length/max": 31744.0,
    "response_length/clip_ratio": 0.25,
    "prompt_length/mean": 301.312,
    "prompt_length/min": 258.0,
    "perf/total_num_tokens": 283792.0,
}
# And its table of vLLM, beside which no length is published.
ARTICLE_VLLM = {
    "timing_s/reshard": 1.04,
    "timing_s/gen": 849.20,
    "timing_s/reward": 1.18,
    "timing_s/old_log_prob": 4.57,
    "timing_s/ref": 4.62,
    "timing_s/update_actor": 19.31,
    "timing_s/step": 878.89,
}


def row(step, scalars, lengths=None):
    """A line as the verl job writes it: no phases, all of verl's keys among the scalars."""
    samples = {"response_length": lengths} if lengths else {}
    scalars = {"training/global_step": step, **scalars}
    return {"step": step, "time": 1.7e9 + step, "resumed": False, "phases": {}, "scalars": scalars, "samples": samples}


def article_row(step=3, **scalars):
    return row(step, ARTICLE | LOGGED | scalars)


def without(one, *names):
    return one | {"scalars": {k: v for k, v in one["scalars"].items() if k not in names}}


def steps_to(last):
    """Steps 1, 2 and 3, each like the last."""
    return [{**last, "step": step, "scalars": last["scalars"] | {"training/global_step": step}} for step in (1, 2, 3)]


def collected(run_dir):
    assert main([str(run_dir), "--out", str(run_dir / "steps.parquet")]) == 0


def _written(folder, name, rows, version, engine, spec, **done):
    run_dir = make_results.write_run(
        folder,
        name,
        name.partition("-")[0],
        int(name.rpartition("-s")[2]) if "-s" in name else 0,
        [rows],
        engine=engine,
        spec_more={"trainer": "verl", "stack": "", "trainer_args": {"version": version, "overrides": []}, **spec},
        done_more={"versions": {"verl": version}, "resolved": {}, **done},
    )
    collected(run_dir)
    if "import" in spec:  # what stands where a trained run has done.json
        told = json.loads((run_dir / "done.json").read_text())
        (run_dir / "imported.json").write_text(json.dumps(told | {"imported": True, "hardware": {}, "sources": []}))
    return read_run(folder, name, None)[0]


def an_import(folder, rows, name="sglang", engine="sglang", **facts):
    """A run of verl's log with the facts of an import: collected as a trained run's, which has the same steps."""
    return _written(folder, name, rows, "0.4.1", engine, {"import": IMPORT | facts, "workload": {}})


def trained(folder, lengths, name="vllm", gen_s=300.0, steps=4, **settings):
    """A run with verl 0.9.1 on 8 H100s, with the same lengths in each step."""
    resolved = {
        f"{ROLLOUT}.tensor_model_parallel_size": 2,
        f"{ROLLOUT}.n": 1,
        f"{ROLLOUT}.dtype": "bfloat16",
        "trainer.n_gpus_per_node": 8,
        "trainer.nnodes": 1,
    } | settings
    seconds = {"gen": gen_s, "old_log_prob": 4.0, "update_actor": 16.0, "update_weights": 2.0, "step": gen_s + 23.0}
    told = {f"timing_s/{key}": value for key, value in seconds.items()}
    told |= {"response_length/mean": sum(lengths) / len(lengths), "response_length/max": max(lengths)}
    told |= {"prompt_length/mean": 50.0, "response_tokens": sum(lengths), "response_length/clip_ratio": 0.0}
    rows = [row(step, told, lengths) for step in range(1, steps + 1)]
    spec = {"workload": WORKLOAD | {"batch_size": len(lengths), "num_generations": 1}}
    done = {"resolved": {"trainer": resolved}, "hardware": {"gpus": SXM}}
    return _written(folder, name, rows, "0.9.1", "vllm", spec, **done)
