"""The page of a plain comparison: its table of estimates fits; and of nothing but repetitions."""

import json

import make_results
import pytest
from chromium import eventually

from analysis.collect import collect_run
from analysis.report.content import read_content
from analysis.report.page import html_page
from analysis.steps import write_steps


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "case"
    arms = {"transformers-as-the-baseline": ("transformers", 3.2), "vllm": ("vllm", 0.9)}
    make_results.realistic(folder, arms, seeds=2, steps=5, collect=lambda run, out: write_steps(collect_run(run), out))
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


def test_a_table_that_goes_on_says_so_and_paper_shows_the_reasons(page, report, tmp_path):
    page.open(report / "report.html", 500)
    cues = page.js(
        "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth)"
        ".map(s => [getComputedStyle(s).backgroundAttachment, s.tabIndex])"
    )
    assert cues and all(cue == ["local, local, scroll, scroll", 0] for cue in cues)
    reasons = "[...document.querySelectorAll('.findings > .unequal dl, [data-verdict=different] th p')]"
    seen = f"{reasons}.map(e => e.checkVisibility({{contentVisibilityAuto: true}}))"
    assert page.js(seen) and not any(page.js(seen))
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        eventually(page, lambda: page.js(seen), all)
        assert not page.js("document.querySelector('.notes li').checkVisibility()")
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
