"""Every number of the page, under its heading, against plain arithmetic: three arms, one of them the baseline.

One page is of TRL's rows of five steps with time between them, two runs at each of two values of a factor. The other is
of verl's steps with their phases, three runs whose steps grow with their responses.
"""

import contextlib
import json
import math
from html.parser import HTMLParser
from statistics import geometric_mean, mean, stdev

import pytest
from arithmetic import times_as_fast, welch
from scipy.stats import t

from analysis.planned import planned
from analysis.report.rendering import html_page
from workflow.cli import main
from workflow.commands.compared_runs import imported_content
from workflow.config.plan import load_plan

ARMS = {"slow": 40.0, "fast": 20.0, "faster": 16.0}
BASELINE, *RIVALS = ARMS
GPUS = 16
FACTORS, SEEDS = (0.7, 1.0), (0, 1)
ROWS, EACH, BETWEEN = range(4), 5, 3.0
"""Rows of a run, the steps that each stands for, and the seconds between two steps."""
COUNTED = ROWS[1:]


class Tables(HTMLParser):
    """The page's tables by their class: for each row heading -> (shown text, full number if it is one)."""

    def __init__(self, page):
        super().__init__()
        self.tables, self._cell = {}, None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "table":
            self._heads = []
            self._rows = self.tables.setdefault(given.get("class", "").split()[-1], [])
        elif tag == "tr":
            self._row = []
        elif tag in ("th", "td"):
            value = given.get("data-value")
            self._cell = ["", value and float(value), int(given.get("colspan", 1))]
            self._row.append(self._cell)
        elif tag == "tbody":
            *groups, names = self._heads
            over = [text for text, _, span in (groups[0] if groups else []) for _ in range(span)] or [""] * len(names)
            self._names = []
            for group, (name, *_) in zip(over, names, strict=True):
                whole = f"{group}: {name}" if group else name
                assert whole not in self._names, ("two columns of one name", whole)
                self._names.append(whole)

    def handle_data(self, data):
        if self._cell:
            self._cell[0] += data

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self._cell = None
        elif tag == "tr" and hasattr(self, "_names"):
            self._rows.append(
                {name: (text, value) for name, (text, value, _) in zip(self._names, self._row, strict=True)}
            )
        elif tag == "tr":
            self._heads.append(self._row)
        elif tag == "table":
            del self._names


def check(table, right):
    """Each row of a table has exactly the right cells; a number is shown as the right one, rounded."""
    assert len(table) == len(right), (len(table), len(right))
    for row, (label, cells) in zip(table, right, strict=True):
        shown = {name: cell for name, cell in row.items() if cell[0] not in ("", "—")}
        first = next(iter(row))
        assert row[first][0] == label
        assert set(shown) - {first} == set(cells), (label, "a new column needs its arithmetic here")
        for name, value in cells.items():
            text, full = shown[name]
            if value is ...:
                continue
            if isinstance(value, str):
                assert text == value, (label, name)
                continue
            assert full == pytest.approx(value, rel=1e-7, abs=1e-9), (label, name)
            number = text.replace(",", "").replace("−", "-").removesuffix("x").removesuffix(" %")
            scale, digits = 100 if text.endswith("%") else 1, len(number.partition(".")[2])
            assert abs(float(number) - scale * value) <= 0.5000001 * 10**-digits, (label, name, text)


def seconds_of(arm, factor, seed, row):
    """Seconds of each step that a row is the mean of."""
    return ARMS[arm] + 10 * factor + 0.5 * seed + (30.0, 0.0, 1.0, 0.5)[row]


def run_seconds(arm, factor):
    return [mean(seconds_of(arm, factor, seed, row) for row in COUNTED) for seed in SEEDS]


def length_of(row):
    return 100.0 + 10 * row


def reward_of(arm, seed, row):
    return 0.5 + 0.01 * row + 0.02 * seed + 0.001 * list(ARMS).index(arm)


def cut_of(seed):
    return 0.0625 + 0.125 * seed


def k3_of(arm, seed):
    return 0.001 + 0.0005 * seed + 0.001 * (arm == "fast")


def logged(folder, arm, factor, seed):
    """A run of TRL as wandb has it, logged every five steps."""
    run, clock, rows = folder / ".wandb-cache" / "me" / "p" / f"{arm}-{factor}-{seed}", 1.7e9, []
    run.mkdir(parents=True)
    for row in ROWS:
        seconds = seconds_of(arm, factor, seed, row)
        clock += EACH * (seconds + BETWEEN)
        rows.append(
            {
                "_step": row,
                "_timestamp": clock,
                "_runtime": clock - 1.7e9,
                "train/global_step": EACH * (row + 1),
                "train/step_time": seconds,
                "train/loss": 0.1,
                "train/reward": reward_of(arm, seed, row),
                "train/completions/mean_length": length_of(row),
                "train/completions/max_length": 3 * length_of(row),
                "train/completions/clipped_ratio": cut_of(seed),
                "train/rollout_correction/k3_kl": k3_of(arm, seed),
                "train/epoch": 0.1 * row,
            }
        )
    about = {"complete": True, "rows": len(rows), "history_lines": len(rows), "config": {}}
    (run / "run.json").write_text(json.dumps(about))
    (run / "history-000000000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"source": f"wandb:me/p/{run.name}", "seed": seed, "factors": {"workload.temperature": factor}}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, no_figures):
    """The tables of the page on rows of five steps, and the table of comparisons."""
    folder = tmp_path_factory.mktemp("sweep")
    facts = {"version": "1.16", "model": "m", "gpu": "H100-80GB", "nodes": 2, "gpus_per_node": GPUS // 2}
    facts |= {"batch_size": 64, "max_response_length": 512}
    config = {
        "experiment": "numbers",
        "baseline": BASELINE,
        "warmup_steps": EACH,
        "arms": {
            arm: {
                "trainer": "trl",
                "engine": "vllm",
                "import": facts | {"runs": [logged(folder, arm, f, seed) for f in FACTORS for seed in SEEDS]},
            }
            for arm in ARMS
        },
        "report": {"price_per_gpu_hour": 2.5, "currency": "EUR", "to_steps": 100},
    }
    with contextlib.chdir(folder):
        plan = load_plan(config)
        specs = {run_id: run.spec for run_id, run in plan.imports.items()}
        content = imported_content(planned(plan.as_json()), specs)
        page = Tables(html_page(content))
    return page.tables | {"comparison": content.tables["comparison"].to_dict("records")}


PAIRS = [(factor, arm) for factor in FACTORS for arm in RIVALS]
EVERY = [(factor, arm) for factor in FACTORS for arm in ARMS]
STEPS = len(SEEDS) * EACH * len(COUNTED)


def test_speed(sweep):
    right, tokens = [], 64 * mean(map(length_of, COUNTED))
    for factor, arm in PAIRS:
        slow, fast = run_seconds(BASELINE, factor), run_seconds(arm, factor)
        value, low, high = times_as_fast(slow, fast)
        cells = {
            "temperature": factor,
            "seconds a step, as measured: baseline": mean(slow),
            "seconds a step, as measured: arm": mean(fast),
            "per step: times as fast": value,
            "per step: 95% from": low,
            "per step: to": high,
            "runs: baseline": len(SEEDS),
            "runs: arm": len(SEEDS),
            "steps of all runs: baseline": STEPS,
            "steps of all runs: arm": STEPS,
            "response tokens a second, of all GPUs: baseline": tokens / mean(slow),
            "response tokens a second, of all GPUs: arm": tokens / mean(fast),
        }
        right.append((f"{arm} vs {BASELINE}", cells))
    check(sweep["speed"], right)


def test_the_wall_clock(sweep):
    """The ratio with the time between steps, which the page does not show."""
    for row, (factor, arm) in zip(sweep["comparison"], PAIRS, strict=True):
        slow, fast = run_seconds(BASELINE, factor), run_seconds(arm, factor)
        more = [(mean(of) + BETWEEN) / mean(of) for of in (slow, fast)]
        assert row["arm"] == arm
        assert row["wall_speedup"] == pytest.approx(times_as_fast(slow, fast)[0] * more[0] / more[1])


def test_ranking(sweep):
    right = []
    for factor in FACTORS:
        first = run_seconds("faster", factor)
        right.append(("faster", {"temperature": factor, "seconds a step": geometric_mean(first)}))
        right[-1][1].update({"times the first's seconds": 1.0, "runs": len(SEEDS)})
        for arm in ("fast", "slow"):
            own = run_seconds(arm, factor)
            value, low, high = times_as_fast(own, first)
            cells = {"temperature": factor, "seconds a step": geometric_mean(own), "times the first's seconds": value}
            right.append((arm, cells | {"95% from": low, "to": high, "runs": len(SEEDS)}))
    check(sweep["ranking"], right)


def test_phases_of_rows_without_timers(sweep):
    right = []
    for factor in FACTORS:
        step, between = {}, {}
        for arm in ARMS:
            seconds = mean(run_seconds(arm, factor))
            step |= {f"seconds: {arm}": seconds}
            step |= {f"times as fast: {arm}": mean(run_seconds(BASELINE, factor)) / seconds} if arm != BASELINE else {}
            between |= {f"seconds: {arm}": BETWEEN}
        right += [("Step", step), ("Between steps", between)]
    check(sweep["phases"], right)


def test_gate(sweep):
    right = []
    for factor, arm in PAIRS:
        rewards = [[mean(reward_of(name, seed, row) for row in COUNTED) for seed in SEEDS] for name in (BASELINE, arm)]
        cuts = [[cut_of(seed) for seed in SEEDS]] * 2
        for label, (slow, fast) in (("reward", rewards), ("share of truncated responses", cuts)):
            difference, half = mean(fast) - mean(slow), welch(slow, fast, 0.99)
            cells = {
                "temperature": factor,
                "quantity": label,
                BASELINE: mean(slow),
                "this arm": mean(fast),
                "difference": difference,
                "99% from": difference - half,
                "to": difference + half,
                "verdict": "alike",
                f"runs of {BASELINE}": len(SEEDS),
                "runs of the arm": len(SEEDS),
                "steps": STEPS,
            }
            right.append((arm, cells))
    check(sweep["gate"], right)


def test_mismatch(sweep):
    right = []
    for factor, arm in PAIRS:
        slow, fast = ([k3_of(name, seed) for seed in SEEDS] for name in (BASELINE, arm))
        value, low, high = times_as_fast(fast, slow)
        cells = {"temperature": factor, "definition": "KL by k3", BASELINE: geometric_mean(slow)}
        cells |= {"this arm": geometric_mean(fast), "times as far": value, "95% from": low, "to": high}
        right.append((arm, cells | {"lengths": "as they are"}))
    check(sweep["mismatch"], right)


def test_cost(sweep):
    right = []
    for factor, arm in EVERY:
        # All steps, warm-up included, and the time before each row but the first, which no row shows.
        steps = sum(EACH * seconds_of(arm, factor, seed, row) for seed in SEEDS for row in ROWS)
        hours = GPUS * (steps + len(SEEDS) * EACH * len(COUNTED) * BETWEEN) / 3600
        gpu_seconds = GPUS * mean(run_seconds(arm, factor))
        cells = {
            "temperature": factor,
            "GPUs": GPUS,
            "GPU-hours used": hours,
            "GPU-seconds a step": gpu_seconds,
            "EUR per GPU-hour": 2.5,
            "EUR, of the used": 2.5 * hours,
            "for steps": 100,
            "GPU-hours for these": 100 * gpu_seconds / 3600,
            "EUR for these": 2.5 * 100 * gpu_seconds / 3600,
        }
        right.append((arm, cells))
    check(sweep["cost"], right)


def test_runs(sweep):
    right = []
    for arm in ARMS:
        for factor in FACTORS:
            for seed in SEEDS:
                cells = {"temperature": factor, "arm": arm, "steps counted": len(COUNTED)}
                cells |= {"of steps": len(ROWS), "attempts": "1", "fingerprint": ...}
                cells["imported from"] = f"wandb:me/p/{arm}-{factor}-{seed}"
                right.append((f"{arm}-temperature={factor:g}-s{seed}", cells))
    check(sweep["runs"], right)


TIMES, RUNS = {"slow": 1.0, "fast": 0.5, "faster": 0.4}, (0, 1, 2)
PHASES = {"Generate": 0.04, "Reward": 0.001, "Old log-probs": 0.004, "Update actor": 0.012}
"""Seconds of an arm of 1.0 for each token of the mean response; each step has `FIXED` seconds more in no timer."""
KEYS = {"Generate": "gen", "Reward": "reward", "Old log-probs": "old_log_prob", "Update actor": "update_actor"}
FIXED, TURNS = 6.0, range(1, 17)


def token_length(step):
    return 400.0 + 50 * (step * 7 % 16)


def phase_seconds(arm, run, step, label):
    return TIMES[arm] * (1 + 0.02 * run) * PHASES[label] * token_length(step)


def fixed_seconds(arm, run):
    return TIMES[arm] * (1 + 0.02 * run) * FIXED


@pytest.fixture(scope="module")
def lengths(tmp_path_factory, no_figures):
    """The tables of the page on steps that grow with their responses."""
    folder, words = tmp_path_factory.mktemp("lengths"), []
    for arm in ARMS:
        for run in RUNS:
            text = ""
            for step in TURNS:
                timers = {f"timing_s/{KEYS[label]}": phase_seconds(arm, run, step, label) for label in PHASES}
                length = token_length(step)
                pairs = timers | {"timing_s/step": sum(timers.values()) + fixed_seconds(arm, run)}
                pairs |= {
                    "response_length/mean": length,
                    "response_length/max": 2 * length + 100 * (step % 3),
                    "critic/score/mean": 0.5,
                }
                pairs |= {"prompt_length/mean": 100.0, "perf/total_num_tokens": 64 * (length + 100)}
                shown = " - ".join(f"{name}:{value:.9f}" for name, value in pairs.items())
                text += f"(TaskRunner pid=1) step:{step} - {shown}\n"
            (folder / f"{arm}{run}.log").write_text(text)
        words.append(f"{arm}={','.join(str(folder / f'{arm}{run}.log') for run in RUNS)}")
    assert main(["compare", *words, "--report", str(folder / "report"), "--warmup", "0"]) == 0
    return Tables((folder / "report" / "report.html").read_text(encoding="utf-8")).tables


def of_runs(arm, value):
    """The runs' means of a value over their steps."""
    return [mean(value(arm, run, step) for step in TURNS) for run in RUNS]


def step_seconds(arm, run, step):
    return sum(phase_seconds(arm, run, step, label) for label in PHASES) + fixed_seconds(arm, run)


def test_speed_where_lengths_are_known(lengths):
    right, tokens = [], 64 * mean(map(token_length, TURNS))
    for arm in RIVALS:
        slow, fast = of_runs(BASELINE, step_seconds), of_runs(arm, step_seconds)
        value, low, high = times_as_fast(slow, fast)
        cells = {"seconds a step, as measured: baseline": mean(slow), "seconds a step, as measured: arm": mean(fast)}
        # The same lengths in both arms: the same ratio.
        cells |= {"at equal work: times as fast": value, "at equal work: 95% from": ..., "at equal work: to": ...}
        cells |= {"at equal work: baseline, s": ..., "at equal work: arm, s": ...}
        cells |= {"per step: times as fast": value, "per step: 95% from": low, "per step: to": high}
        steps = len(RUNS) * len(TURNS)
        cells |= {"runs: baseline": len(RUNS), "runs: arm": len(RUNS), "steps of all runs: baseline": steps}
        cells |= {
            "steps of all runs: arm": steps,
            "response tokens a second, of all GPUs: baseline": tokens / mean(slow),
        }
        right.append(
            (f"{arm} vs {BASELINE}", cells | {"response tokens a second, of all GPUs: arm": tokens / mean(fast)})
        )
    check(lengths["speed"], right)
    for row in lengths["speed"]:
        low, value, high = (row[f"at equal work: {name}"][1] for name in ("95% from", "times as fast", "to"))
        baseline_s, arm_s = (row[f"at equal work: {name}, s"][1] for name in ("baseline", "arm"))
        assert baseline_s / arm_s == pytest.approx(value) and baseline_s == pytest.approx(
            row["seconds a step, as measured: baseline"][1], rel=0.05
        )
        assert 0.8 * value < low < value < high < 1.25 * value


def test_phases(lengths):
    rows = {label: {} for label in ("Step", *PHASES, "No timer", "Sum of own seconds")}
    rows |= {"All timers added up": {}, "The same without nested ones": {}}
    step_of = {arm: mean(of_runs(arm, step_seconds)) for arm in ARMS}
    for arm, step in step_of.items():
        faster = {} if arm == BASELINE else {f"times as fast: {arm}": step_of[BASELINE] / step}
        rows["Step"] |= {f"seconds: {arm}": step} | faster
        timed = {label: mean(of_runs(arm, lambda *at, label=label: phase_seconds(*at, label))) for label in PHASES}
        for label, seconds in timed.items():
            cells = {"seconds": seconds, "own seconds": seconds, "own share": seconds / step}
            rows[label] |= {f"{name}: {arm}": value for name, value in cells.items()} | faster
        rest = mean(fixed_seconds(arm, run) for run in RUNS)
        # Four timers and the step are each off by half a unit of the ninth digit.
        rows["No timer"] |= {f"own seconds: {arm}": f"{rest:.9f} ± 0.000000003", f"own share: {arm}": rest / step}
        rows["Sum of own seconds"] |= {f"own seconds: {arm}": step, f"own share: {arm}": 1.0}
        for label in ("All timers added up", "The same without nested ones"):
            rows[label][f"seconds: {arm}"] = sum(timed.values())
    check(lengths["phases"], list(rows.items()))


def test_what_a_step_costs(lengths):
    right = []
    for arm in ARMS:
        for label, each in {"Step": sum(PHASES.values()), **PHASES}.items():
            slopes = [1000 * TIMES[arm] * (1 + 0.02 * run) * each for run in RUNS]
            half = stdev(slopes) / math.sqrt(len(RUNS)) * t.ppf(0.975, len(RUNS) - 1)
            cells = {
                "phase": label,
                "seconds for 1,000 tokens of the mean response": mean(slopes),
                "95% from": mean(slopes) - half,
            }
            cells |= {"to": mean(slopes) + half, "mean response: from": 400, "mean response: to": 1150}
            right.append((arm, cells))
    check(lengths["step_costs"], right)
