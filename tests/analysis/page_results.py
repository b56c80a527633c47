"""An experiment whose names and texts try to break the page, and its report."""

import json

import make_results

from analysis.report.__main__ import main as report

HOSTILE = '</style><script>console.error("ran")</script><img src="http://127.0.0.1:9/x.png">'
JAPANESE = "変換器＝基準"


def write_report(folder):
    """A sweep of three arms with hostile and Japanese names, and its report in `folder`."""
    arms = {JAPANESE: ("transformers", 3.2), "vllm": ("vllm", 0.9), f"vllm {HOSTILE}": ("vllm", 1.4)}
    # A folder cannot be named like that: run ids are made of plain characters, arms need not be.
    make_results.realistic(
        folder,
        arms,
        seeds=2,
        steps=6,
        factors=[{"workload.temperature": 0.7}, {"workload.temperature": 1.0}],
        run_ids=lambda n: f"run-{n}",
    )
    for run in ("run-0", "run-4"):
        make_results.write_rows(folder / "runs" / run / "attempts" / "1" / "samples.jsonl", samples())
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(plan | {"description": HOSTILE}))
    (folder / "preflight.json").write_text(json.dumps(preflight(list(arms))))
    assert report(["--plan", str(folder / "plan.json"), "--results", str(folder), "--out", str(folder)]) == 0
    return folder


SAMPLES = (HOSTILE, "x" * 10_000, "\u202eمرحبا بالعالم\u0000", f"<answer>{JAPANESE}</answer>\n" * 9, "")


def samples():
    """Sample completions of five prompts before and after training, whose texts try to break the page, too."""
    more = {"tokens": 16, "cut_off": True, "rewards": {"accuracy": 0.0, HOSTILE: None}}
    made = [
        {"row": row, "prompt": [{"role": "user", "content": text}], "completion": text, "characters": len(text), **more}
        for row, text in enumerate(SAMPLES)
    ]
    return [
        {"step": step, "steps": 6, "how": HOSTILE, "seconds": 1.0, "problem": None, "samples": made} for step in (0, 6)
    ]


def preflight(arms):
    """A ledger of every verdict and findings of every level, with texts that must not run."""
    words = {"arms": arms, "what": HOSTILE, "why": HOSTILE, "source": HOSTILE, "change": HOSTILE}
    verdicts = ("different", "unverifiable", "equivalent", "equal", "equal")
    return {
        "experiment": "quick",
        "findings": [{"level": level, "code": "x-y", **words} for level in ("impossible", "unequal", "odd")],
        "ledger": [
            {
                "setting": f"actor_rollout_ref.rollout.a_rather_long_name_{i}",
                "values": {arm: "a_long_value_without_a_space/" * 3 for arm in arms},
                "verdict": verdict,
                "why": HOSTILE,
                "source": "verl 0.4.1",
            }
            for i, verdict in enumerate(verdicts)
        ],
        "unverifiable": [HOSTILE],
    }
