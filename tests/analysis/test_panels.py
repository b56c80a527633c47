"""The names over a figure's panels: whole, in as many lines as they need."""

import figure_tables as made

from analysis.estimates.arm import ONE_PAIR
from analysis.figures.ratios import estimates_figure, paired_figure


def test_a_sweeps_options_stand_whole_over_each_panel_of_steps():
    factors = [{"workload.temperature": t, "workload.num_generations": 16} for t in (0.7, 1.0)]
    arms = ["transformers", "vllm-with-a-long-name"]
    figure = paired_figure(made.wide_of(arms, steps=4, factors=factors), made.plan_of(arms))
    for text in ("vllm-with-a-long-name ·", "num_generations = 16,", "temperature = 0.7", "temperature = 1.0"):
        assert f">{text}<" in figure.svg
    assert "…" not in figure.svg and "in full" not in figure.caption
    arms[1] = "v" * 60
    assert "v" * 60 in paired_figure(made.wide_of(arms, steps=4), made.plan_of(arms)).alt
    several = made.wide_of(arms, steps=4, factors=factors)
    assert "names in full: " + "v" * 60 in paired_figure(several, made.plan_of(arms)).caption


def test_the_caption_tells_which_noise_decides():
    tables = made.tables_of(["transformers", "vllm"], seeds=2, steps=4)
    plain = estimates_figure(tables.estimates, tables.plan, tables.noise)
    assert "Grey band" in plain.caption and "no verdict follows from it" in plain.caption
    assert "declared A/A arms" not in plain.caption
    why = "within the noise: the same engine run twice differs by up to 1.30×"
    quiet = tables.estimates.assign(value=1.2, low=1.1, high=1.25, verdict="~", why=why)
    assert "no farther from 1 than the same estimate of the declared A/A arms" in (
        estimates_figure(quiet, tables.plan, tables.noise).caption
    )
    single = tables.estimates.assign(value=1.2, low=1.1, high=1.25, verdict="~", why=ONE_PAIR)
    caption = estimates_figure(single, tables.plan, tables.noise).caption
    assert "or there is only one run pair, and the interval is over its steps" in caption
    assert "one run pair" not in plain.caption
