"""A page of many runs stays light: the rows of runs go to the files, and the page says so."""

import make_results
import pytest

from analysis.report.__main__ import main

ARMS = {"transformers": ("transformers", 3.2), "vllm": ("vllm", 0.9)}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "sweep"
    factors = [{"workload.temperature": t, "workload.num_generations": n} for t in (0.7, 1.0) for n in (4, 8)]
    make_results.realistic(folder, ARMS, seeds=8, steps=3, factors=factors)
    assert main(["--plan", str(folder / "plan.json"), "--results", str(folder), "--out", str(folder)]) == 0
    return folder


def test_its_size_does_not_grow_with_the_runs(many):
    """What grows is the number of factor combinations; of 4 they take less than an eighth of the 5 MB of 1,000 runs."""
    assert (many / "report.html").stat().st_size < 5e6 / 8
    assert (many / "report.md").stat().st_size < 60_000  # a pull request takes 65,536 characters


def test_a_sweep_shows_its_figures_before_its_rows(page, many):
    page.open(many / "report.html")
    order = page.js("[...document.querySelectorAll('main > section')].map(s => s.getAttribute('aria-labelledby'))")
    assert order.index("sweeps") < order.index("phases")
    assert page.js("document.querySelectorAll('#sweeps ~ figure#figure-sweep').length") == 1


def test_nothing_is_cut_off_on_paper(page, many, report):
    for folder in (many, report):
        page.open(folder / "report.html", width=720)
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        try:
            wide = page.js(
                "[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && "
                "e.getBoundingClientRect().right > 721).map(e => e.outerHTML.slice(0, 80))"
            )
            assert wide == []
            assert not page.js(
                "document.querySelector('.filter') && document.querySelector('.filter').checkVisibility()"
            )
        finally:
            page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
