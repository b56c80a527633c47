"""What the report's figures show, as Altair charts."""

from __future__ import annotations

import altair as alt
import pandas as pd

from analysis.drawing import CATEGORY_COLOURS, GREY, HEIGHT, WIDTH, Figure, arm_scale, dash_scale, render
from analysis.figure_data import length_histogram, series, wants_log, with_tokens_per_second
from analysis.phases import RESIDUAL
from analysis.reward import REWARD
from analysis.rows import rows_of
from analysis.runs import Plan, factors_label
from analysis.wide import PHASE

MAX_BARS = 40


def bar_name(arm: str, factors: str) -> str:
    return f"{arm}\n{factors_label(factors)}" if factors else arm


def phase_bars(categories: pd.DataFrame, plan: Plan) -> Figure | None:
    """Mean seconds per step by category, one bar per factor combination and arm; the residual is outlined."""
    if categories.empty:
        return None
    groups = categories[["factors", "arm"]].drop_duplicates().head(MAX_BARS)
    frame = categories.merge(groups, on=["factors", "arm"])
    frame["bar"] = [bar_name(r.arm, r.factors) for r in rows_of(frame)]
    order = [*CATEGORY_COLOURS, RESIDUAL]
    frame["rank"] = frame["category"].map(order.index)
    # A tiny negative own time (two clocks) has no length to draw; the tables show it.
    frame["seconds"] = frame["own_mean_s"].clip(lower=0)
    frame = frame.sort_values(["bar", "rank"])
    frame["end"] = frame.groupby("bar")["seconds"].cumsum()
    frame["start"] = frame["end"] - frame["seconds"]
    present = [c for c in order if c in set(frame["category"])]
    colours = ["transparent" if c == RESIDUAL else CATEGORY_COLOURS[c] for c in present]
    bars = list(dict.fromkeys(bar_name(r.arm, r.factors) for r in rows_of(groups)))
    is_residual = alt.datum.category == RESIDUAL
    two_lines = alt.Axis(labelExpr="split(datum.label, '\\n')", labelLimit=300)
    chart = (
        alt.Chart(frame)
        .mark_bar(height=alt.RelativeBandSize(0.72))
        .encode(
            x=alt.X(
                "start:Q",
                title="mean seconds per step, own time of each category",
                axis=alt.Axis(tickCount=8, labelFlush=False),
            ),
            x2="end:Q",
            y=alt.Y("bar:N", sort=bars, title=None, axis=two_lines),
            color=alt.Color(
                "category:N",
                scale=alt.Scale(domain=present, range=colours),
                legend=alt.Legend(symbolStrokeColor="currentColor", symbolStrokeWidth=1),
            ),
            stroke=alt.condition(is_residual, alt.value("currentColor"), alt.value("transparent")),
            strokeDash=alt.condition(is_residual, alt.value([3, 2]), alt.value([1, 0])),
        )
    )
    totals = frame.groupby(["bar"], as_index=False)["end"].max()
    totals["text"] = [f"{seconds:,.3g} s" for seconds in totals["end"]]
    labels = (
        alt.Chart(totals)
        .mark_text(align="left", dx=6, fontSize=12)
        .encode(x="end:Q", y=alt.Y("bar:N", sort=bars, axis=two_lines), text="text:N")
    )
    # Room on the left: the page's font may be wider than the one that the labels were measured with.
    room = {
        "left": 4 + 2 * max(len(line) for bar in bars for line in bar.split("\n")),
        "top": 4,
        "right": 4,
        "bottom": 4,
    }
    drawn = (chart + labels).properties(width=WIDTH - 120, height=max(44 * len(bars), 60), padding=room)
    svg = render(drawn)
    words = "; ".join(
        str(bar).replace("\n", ", ") + ": " + ", ".join(f"{r.category} {r.own_mean_s:.3g} s" for r in rows_of(rows))
        for bar, rows in frame.groupby("bar", sort=False)
    )
    cut = f" The first {MAX_BARS} bars are drawn; the tables have all." if len(groups) == MAX_BARS else ""
    return Figure(
        "phases",
        "Where the step goes",
        "Mean own seconds per counted step. The dashed outline is the residual: the part of the step that no "
        f"timer covers.{cut}",
        words,
        svg,
    )


def over_steps(wide: pd.DataFrame, plan: Plan, column: str, name: str, title: str, unit: str) -> Figure | None:
    """A quantity over the training steps, by run or (many runs) by arm; what does not count is grey."""
    frame = series(wide, column)
    if frame.empty:
        return None
    each_run = not (frame["line"] == frame["arm"]).all()
    log = name == "step-time" and wants_log(frame["value"])
    if log:
        frame = frame[frame["value"] > 0].copy()
    for shown, of in (("kept", "value"), ("low", "low"), ("high", "high")):
        frame[shown] = frame[of].where(frame["counted"])
    y_scale = alt.Scale(type="log", nice=True) if log else alt.Scale(zero=name != "reward", nice=True)
    y_title = f"{unit} (log scale)" if log else unit
    x = alt.X("step:Q", title="training step", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False, zero=False))
    colour = alt.Color("arm:N", scale=arm_scale(plan), legend=alt.Legend(symbolType="stroke", symbolSize=300))
    layers = []
    if plan.warmup_steps:
        span = pd.DataFrame(
            {"start": [frame["step"].min()], "end": [min(plan.warmup_steps + 0.5, frame["step"].max())]}
        )
        layers.append(alt.Chart(span).mark_rect(color=GREY, opacity=0.16).encode(x=alt.X("start:Q"), x2="end:Q"))
    base = alt.Chart(frame).encode(x=x)
    y = alt.Y("value:Q", title=y_title, scale=y_scale)
    layers.append(base.mark_line(color=GREY, strokeWidth=1).encode(y=y, detail="line:N"))
    if not each_run:
        layers.append(base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=y_title), y2="high:Q", color=colour))
    layers.append(
        base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14) if len(frame) <= 200 else False).encode(
            y=alt.Y("kept:Q", title=y_title),
            color=colour,
            strokeDash=alt.StrokeDash("arm:N", scale=dash_scale(plan)),
            detail="line:N",
        )
    )
    greys = frame[~frame["counted"]]
    if len(greys):
        layers.append(alt.Chart(greys).mark_point(color=GREY, filled=True, size=18, opacity=1).encode(x=x, y=y))
    svg = render(alt.layer(*layers).properties(width=WIDTH, height=HEIGHT))
    how = "One line per run." if each_run else "Median over an arm's runs; the band holds 10% to 90% of them."
    if wide["factors"].nunique() > 1:
        how += " All factor combinations together."
    medians = frame[frame["counted"]].groupby("arm", sort=False)["value"].median()
    words = "; ".join(f"{arm}: median {value:.4g}" for arm, value in medians.items())
    grey = " Grey: steps that do not count (warm-up, first step after a resume)."
    return Figure(name, title, how + grey, f"{title}, {unit}, over training steps. {words}", svg)


def length_figure(lengths: pd.DataFrame, plan: Plan) -> Figure | None:
    """Distribution of response lengths by arm."""
    frame = length_histogram(lengths)
    if frame.empty:
        return None
    chart = (
        alt.Chart(frame)
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=alt.X("start:Q", title="response length, tokens"),
            y=alt.Y("share:Q", title="share of the arm's responses", axis=alt.Axis(format="%")),
            color=alt.Color("arm:N", scale=arm_scale(plan)),
            strokeDash=alt.StrokeDash("arm:N", scale=dash_scale(plan)),
        )
    )
    svg = render(chart.properties(width=WIDTH, height=HEIGHT))
    stats = lengths.groupby("arm", sort=False)["value"].agg(["mean", "max", "size"])
    words = "; ".join(
        f"{arm}: mean {s['mean']:.4g}, longest {s['max']:.0f}, {s['size']:.0f} responses" for arm, s in stats.iterrows()
    )
    return Figure(
        "response-length",
        "How long the responses are",
        "All responses of the counted steps. A synchronous step waits for its longest response, so arms whose "
        "lengths differ did not do equal work.",
        f"Distribution of response lengths in tokens. {words}",
        svg,
    )


def all_figures(wide: pd.DataFrame, categories: pd.DataFrame, lengths: pd.DataFrame, plan: Plan) -> list[Figure]:
    """The report's figures in order; one without data is left out."""
    if not len(wide):
        return []
    rates = with_tokens_per_second(wide)
    made = [
        phase_bars(categories, plan),
        over_steps(wide, plan, PHASE + "step", "step-time", "Step time", "seconds per step"),
        length_figure(lengths, plan),
        over_steps(wide, plan, REWARD, "reward", "Reward", "mean reward"),
        over_steps(
            rates, plan, "tokens_per_s", "tokens-per-second", "Throughput", "response tokens per second of step"
        ),
    ]
    return [figure for figure in made if figure is not None]
