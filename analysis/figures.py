"""The report's figures, as Altair charts rendered to SVG and PNG."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
import vl_convert as vlc

from analysis.figure_data import length_histogram, series, wants_log, with_tokens_per_second
from analysis.phases import RESIDUAL
from analysis.runs import Plan, factors_label
from analysis.wide import PHASE

# Okabe and Ito (2008) for categories, Tol's "bright" for arms: each is told apart with any colour vision,
# and the two are not mistaken for one another.
CATEGORY_COLOURS = {
    "generation": "#E69F00",
    "weight sync": "#56B4E9",
    "log-probs": "#009E73",
    "rewards": "#F0E442",
    "loss+backward": "#0072B2",
    "optimizer": "#CC79A7",
    "other": "#999999",
}
ARM_COLOURS = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE", "#BBBBBB")
ARM_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 4], [1, 3])
GREY = "#8a8f98"
FONT = "system-ui, 'Noto Sans CJK JP', 'Noto Sans CJK SC', 'Noto Sans', sans-serif"
WIDTH, HEIGHT = 640, 260
MAX_BARS = 40


@dataclass(frozen=True)
class Figure:
    """A figure: `svg` takes its text colour from the page; `alt` is what it shows, in words."""

    name: str
    title: str
    caption: str
    alt: str
    svg: str

    @property
    def standalone_svg(self) -> str:
        """The same on white paper, for a file."""
        return self.svg.replace("currentColor", "#1b1f24")

    def png(self) -> bytes:
        paper = re.sub(
            r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="white"/>', self.standalone_svg, count=1
        )
        return bytes(vlc.svg_to_png(paper, scale=2))


def _render(chart: Any) -> str:
    styled = (
        chart.configure(font=FONT, background="transparent", aria=False, padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor="currentColor",
            titleColor="currentColor",
            domainColor="currentColor",
            tickColor="currentColor",
            gridColor="currentColor",
            gridOpacity=0.12,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=220,
        )
        .configure_legend(
            labelColor="currentColor",
            titleColor="currentColor",
            labelFontSize=12,
            labelLimit=260,
            orient="top",
            offset=6,
            title=None,
            symbolStrokeWidth=2,
        )
        .configure_text(color="currentColor")
    )
    out = io.StringIO()
    with alt.data_transformers.enable("default", max_rows=None):
        styled.save(out, format="svg")
    return _light(out.getvalue())


def _light(svg: str) -> str:
    # Seven digits of a pixel draw nothing; without them the page is half the size.
    return re.sub(r"(\d\.\d{2})\d+", r"\1", svg)


def _arm_scale(plan: Plan) -> alt.Scale:
    arms = list(plan.arms)
    return alt.Scale(domain=arms, range=[ARM_COLOURS[i % len(ARM_COLOURS)] for i in range(len(arms))])


def _dash_scale(plan: Plan) -> alt.Scale:
    arms = list(plan.arms)
    return alt.Scale(domain=arms, range=[ARM_DASHES[i % len(ARM_DASHES)] for i in range(len(arms))])


def phase_bars(categories: pd.DataFrame, plan: Plan) -> Figure | None:
    """Mean seconds per step by category, one bar per factor combination and arm; the residual is outlined."""
    if categories.empty:
        return None
    groups = categories[["factors", "arm"]].drop_duplicates().head(MAX_BARS)
    frame = categories.merge(groups, on=["factors", "arm"])
    frame["bar"] = [f"{r.arm} · {factors_label(r.factors)}" if r.factors else r.arm for r in frame.itertuples()]
    order = [*CATEGORY_COLOURS, RESIDUAL]
    frame["rank"] = frame["category"].map(order.index)
    # A tiny negative own time (two clocks) has no length to draw; the tables show it.
    frame["seconds"] = frame["own_mean_s"].clip(lower=0)
    frame = frame.sort_values(["bar", "rank"])
    frame["end"] = frame.groupby("bar")["seconds"].cumsum()
    frame["start"] = frame["end"] - frame["seconds"]
    present = [c for c in order if c in set(frame["category"])]
    colours = ["transparent" if c == RESIDUAL else CATEGORY_COLOURS[c] for c in present]
    bars = list(dict.fromkeys(frame["bar"]))
    ordered = sorted(bars, key=lambda b: list(plan.arms).index(frame.loc[frame["bar"] == b, "arm"].iloc[0]))
    is_residual = alt.datum.category == RESIDUAL
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
            y=alt.Y("bar:N", sort=ordered, title=None),
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
        .encode(x="end:Q", y=alt.Y("bar:N", sort=ordered), text="text:N")
    )
    svg = _render((chart + labels).properties(width=WIDTH - 80, height=max(44 * len(bars), 60)))
    words = "; ".join(
        f"{bar}: " + ", ".join(f"{r.category} {r.own_mean_s:.3g} s" for r in rows.itertuples())
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
    frame["kept"] = frame["value"].where(frame["counted"])
    y_scale = alt.Scale(type="log", nice=True) if log else alt.Scale(zero=name != "reward", nice=True)
    y_title = f"{unit} (log scale)" if log else unit
    x = alt.X("step:Q", title="training step", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False, zero=False))
    colour = alt.Color("arm:N", scale=_arm_scale(plan), legend=alt.Legend(symbolType="stroke", symbolSize=300))
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
            strokeDash=alt.StrokeDash("arm:N", scale=_dash_scale(plan)),
            detail="line:N",
        )
    )
    greys = frame[~frame["counted"]]
    if len(greys):
        layers.append(alt.Chart(greys).mark_point(color=GREY, filled=True, size=18, opacity=1).encode(x=x, y=y))
    svg = _render(alt.layer(*layers).properties(width=WIDTH, height=HEIGHT))
    how = "One line per run." if each_run else "Median over an arm's runs; the band holds 10% to 90% of them."
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
            color=alt.Color("arm:N", scale=_arm_scale(plan)),
            strokeDash=alt.StrokeDash("arm:N", scale=_dash_scale(plan)),
        )
    )
    svg = _render(chart.properties(width=WIDTH, height=HEIGHT))
    stats = lengths.groupby("arm", sort=False)["value"].agg(["mean", "max", "size"])
    words = "; ".join(
        f"{arm}: mean {s['mean']:.4g}, longest {s['max']:.0f}, {s['size']:.0f} responses" for arm, s in stats.iterrows()
    )
    return Figure(
        "response-length",
        "How long the responses are",
        "All responses of the counted steps. A synchronous step waits for its longest response, so arms "
        "whose "
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
        over_steps(wide, plan, "train/reward", "reward", "Reward", "mean reward"),
        over_steps(
            rates, plan, "tokens_per_s", "tokens-per-second", "Throughput", "response tokens per second of step"
        ),
    ]
    return [figure for figure in made if figure is not None]
