"""The page as a browser shows it: its numbers, and that it needs nothing but itself."""

import pandas as pd
import pytest
from page_results import HOSTILE, JAPANESE

# For each row of a table: its path, and (full value, shown text) of each cell.
ROWS = """[...document.querySelectorAll('%s')].map(table => [...table.tBodies[0].rows].map(row => [
    row.dataset.path,
    [...row.cells].slice(1).map(c => [c.dataset.value || null, c.textContent]),
]))"""


def test_the_check_itself_notices_requests_and_errors(page, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><img src='http://127.0.0.1:9/x.png'><script>console.error('seen')</script>")
    page.open(bad)
    assert page.requests() == ["http://127.0.0.1:9/x.png"]
    assert any("seen" in line for line in page.complaints())


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (1280, True)])
def test_no_request_no_complaint_no_sideways_scrolling(page, report, width, dark):
    page.open(report / "report.html", width, dark)
    assert page.requests() == []
    assert page.complaints() == []
    assert page.js("document.documentElement.scrollWidth") <= width
    # Every arm's verdict and ratio are seen without scrolling the first table.
    assert page.js("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.overview').parentElement)")
    light = page.js("getComputedStyle(document.body).backgroundColor")
    assert light == ("rgb(20, 23, 27)" if dark else "rgb(252, 252, 250)")


def test_texts_from_the_data_are_shown_not_run(page, report):
    page.open(report / "report.html")
    assert page.js("document.scripts.length") == 1 and page.js("document.images.length") == 0
    assert page.js("document.querySelector('.description').textContent") == HOSTILE
    assert JAPANESE in page.js("document.querySelector('.verdict').textContent")
    drawn = page.js("[...document.querySelectorAll('svg text')].map(t => t.textContent)")
    assert any(JAPANESE in text for text in drawn)


@pytest.mark.parametrize("width", [1280, 390])
def test_samples_stay_in_their_places(page, report, width):
    page.open(report / "report.html", width)
    page.js("document.querySelectorAll('#samples ~ details, #samples ~ details details').forEach(d => d.open = true)")
    assert page.js("document.documentElement.scrollWidth") <= width
    shown = page.js("[...document.querySelectorAll('table.samples')].map(t => t.rows[1].cells[1].textContent)")
    assert [text.startswith(start) for text, start in zip(shown, (HOSTILE, "x" * 600), strict=False)] == [True, True]
    assert len(shown) == 5 and "␀" in shown[2] and shown[4].startswith("(empty)")
    assert page.js("document.scripts.length") == 1 and page.js("document.images.length") == 0
    cells = "[...document.querySelectorAll('table.samples td')]"
    assert page.js(f"{cells}.every(c => c.scrollWidth <= c.clientWidth)"), "a text leaves its cell"


def test_ledger_puts_differences_first_and_folds_the_rest(page, report):
    page.open(report / "report.html")
    tables = page.js(
        "[...document.querySelectorAll('table.ledger')].map(t => [t.dataset.verdict, t.tBodies[0].rows.length])"
    )
    assert tables == [["different", 1], ["unverifiable", 1], ["equivalent", 1], ["equal", 2]]
    seen = page.js(
        "[...document.querySelectorAll('table.ledger')].filter(t => t.checkVisibility()).map(t => t.dataset.verdict)"
    )
    assert seen == ["different"]
    assert "Unequal terms" in page.js("document.querySelector('.caveats .terms').textContent")
    listed = page.js("[...document.querySelectorAll('.findings > li')].map(l => [l.className, l.checkVisibility()])")
    assert listed == [["impossible", True], ["unequal", True], ["odd", False]]


def test_phase_table_shows_the_parquets_numbers(page, report):
    page.open(report / "report.html")
    phases = pd.read_parquet(report / "tables" / "phases.parquet")
    tables = page.js(ROWS % "table.phases")
    combinations = list(phases["factors"].unique())
    assert len(tables) == len(combinations) == 2
    for factors, rows in zip(combinations, tables, strict=True):
        here = phases[phases["factors"] == factors]
        arms = list(here["arm"].unique())
        assert len(arms) == 3
        shown = dict(rows)
        for i, arm in enumerate(arms):
            truth = here[here["arm"] == arm].set_index("path")
            for path in truth.index.drop("step"):
                cells = shown[path][4 * i : 4 * i + 4]
                for (value, text), column in zip(cells, ("mean_s", "median_s", "own_mean_s", "own_share"), strict=True):
                    assert float(value) == truth.loc[path, column]
                    check_rounding(text, truth.loc[path, column])
            assert float(shown["step"][4 * i][0]) == truth.loc["step", "mean_s"]
            residual = float(shown["(residual)"][4 * i + 2][0])
            assert residual == truth.loc["step", "own_mean_s"]
            own = [float(shown[p][4 * i + 2][0]) for p in truth.index.drop("step")]
            assert sum(own) + residual == pytest.approx(float(shown["step"][4 * i][0]), abs=1e-9)


def check_rounding(text, value):
    number = text.replace(",", "").replace("−", "-").removesuffix(" %")
    digits = len(number.partition(".")[2])
    scaled = 100 * value if text.endswith("%") else value
    assert abs(float(number) - scaled) <= 0.5 * 10**-digits + 1e-9


def test_comparison_shows_the_parquets_numbers_and_steps_give_them_again(page, report):
    page.open(report / "report.html")
    comparison = pd.read_parquet(report / "tables" / "comparison.parquet")
    steps = pd.read_parquet(report / "tables" / "steps.parquet")
    (rows,) = page.js(ROWS % "table.comparison")
    assert len(rows) == len(comparison) == 4
    for (arm, cells), truth in zip(rows, comparison.itertuples(), strict=True):
        raw, per_token = float(cells[3][0]), float(cells[4][0])
        assert (arm, raw, per_token) == (truth.arm, truth.raw_speedup, truth.per_token_speedup)
        counted = steps[steps["counted"] & (steps["factors"] == truth.factors)]
        a, b = (counted[counted["arm"] == name] for name in (truth.baseline, truth.arm))
        assert raw == pytest.approx(a["timing_s/step"].sum() / b["timing_s/step"].sum(), rel=1e-12)
        tokens = a["response_tokens"].sum() / b["response_tokens"].sum()
        assert per_token == pytest.approx(raw / tokens, rel=1e-12)
    big = page.js(
        "[...document.querySelectorAll('.answer')].map(a => [a.dataset.arm, a.querySelector('dd').textContent])"
    )
    for arm, text in big:
        values = comparison.loc[comparison["arm"] == arm, "raw_speedup"]
        assert text == f"{values.min():.2f}× to {values.max():.2f}×"


def test_phase_speedups_show_the_parquets_numbers(page, report):
    page.open(report / "report.html")
    speedups = pd.read_parquet(report / "tables" / "phase_speedups.parquet")
    tables = page.js(ROWS % "table.speedups")
    blocks = [rows for _, rows in speedups.groupby(["factors", "arm"], sort=False)]
    assert len(tables) == len(blocks) == 4
    for shown, block in zip(tables, blocks, strict=True):
        for (path, cells), truth in zip(shown, block.itertuples(), strict=True):
            assert path == truth.path
            for (value, text), number in zip(
                cells[:3], (truth.baseline_mean_s, truth.arm_mean_s, truth.saved_s), strict=True
            ):
                assert (value is None and text == "—") if pd.isna(number) else float(value) == number


def test_page_can_be_read_aloud_and_used_by_keyboard(page, report):
    page.open(report / "report.html")
    assert page.js("document.documentElement.lang") == "en"
    assert page.js("[...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent.trim())")
    assert page.js("[...document.querySelectorAll('th')].every(h => h.scope)")
    names = (
        "[...document.querySelectorAll('svg:not([aria-hidden])')]"
        ".map(s => [s.getAttribute('role'), s.getAttribute('aria-label').length])"
    )
    labels = page.js(names)
    assert len(labels) >= 5 and all(role == "img" and length > 40 for role, length in labels)
    assert page.js("[...document.querySelectorAll('.scroll')].every(s => s.tabIndex === 0 && s.ariaLabel)")
    assert page.js("document.querySelectorAll('h1').length") == 1
    ids = page.js("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_dark_page_keeps_its_text_readable(page, report):
    for dark in (False, True):
        page.open(report / "report.html", dark=dark)
        parts = (".terms a", ".unequal > strong", ".impossible > strong", ".findings dt", ".ledger .source", ".counts")
        for selector in ("body", ".note", "summary", "figcaption", "caption", ".none, .kicker", *parts):
            ink = page.js(f"getComputedStyle(document.querySelector('{selector}')).color")
            paper = page.js("getComputedStyle(document.body).backgroundColor")
            assert contrast(ink, paper) >= 4.5, (selector, dark)
        assert page.js("getComputedStyle(document.querySelector('svg text')).fill") == page.js(
            "getComputedStyle(document.body).color"
        )


def contrast(a, b):
    """WCAG 2's contrast ratio of two `rgb(r, g, b)` colours."""

    def luminance(colour):
        channels = [int(c) / 255 for c in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)
