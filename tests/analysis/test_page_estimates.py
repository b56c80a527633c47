"""The page of a plain comparison: its table of estimates fits; and of nothing but repetitions."""

import json

import make_results
import pytest

from analysis.report.content import read_content
from analysis.report.page import html_page


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "case"
    arms = {"transformers-as-the-baseline": ("transformers", 3.2), "vllm": ("vllm", 0.9)}
    make_results.realistic(folder, arms, seeds=2, steps=5)
    return folder


def content(folder):
    return read_content(folder / "plan.json", folder, None, None)


def test_the_table_of_estimates_fits_and_tells_a_scope_of_all_once(page, plain, tmp_path):
    found = content(plain)
    assert found.tables["estimates"]["scope"].unique().tolist() == ["across runs"]
    (tmp_path / "report.html").write_text(html_page(found), encoding="utf-8")
    page.open(tmp_path / "report.html", width=1200)
    heads = page.js("[...document.querySelectorAll('table.estimates thead th')].map(th => th.textContent)")
    assert "scope" not in heads and {"least detectable", "more runs to resolve"} <= set(heads)
    assert "(across runs)" in page.js("document.querySelector('table.estimates caption').textContent")
    over = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('table.estimates').parentElement)"
    assert page.js(over) <= 0
    page.open(tmp_path / "report.html", 1280, height=800)
    parts = "[...document.querySelectorAll('.verdict, .claimed dd, .caveats li')]"
    ends = page.js(f"{parts}.map(e => e.getBoundingClientRect().bottom)")
    assert len(ends) >= 4 and max(ends) <= 800, "the answer is on the first screen"
    assert page.js("document.querySelectorAll('.caveats .settle, .try').length") > 0


def test_nothing_but_a_repetition_is_no_comparison_and_says_why(plain):
    path = plain / "plan.json"
    before = path.read_text()
    plan = json.loads(before)
    plan["arms"]["vllm"]["same_as"] = "transformers-as-the-baseline"
    path.write_text(json.dumps(plan))
    try:
        found = content(plain)
    finally:
        path.write_text(before)
    low, high = found.tables["noise"].iloc[0][["low", "high"]]
    assert found.arm_verdicts == []
    assert found.no_comparison == (
        "No comparison: there are only repetitions (A/A) of one arm "
        "(vllm is the same as transformers-as-the-baseline). "
        f"The noise: 95% of the step time ratios of two such runs are between {low:.3g} and {high:.3g}."
    )
