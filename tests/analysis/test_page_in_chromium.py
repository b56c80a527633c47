"""The page as a browser shows it: its numbers, and that it needs nothing but itself."""

import pytest
from page_results import HOSTILE, JAPANESE


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
    ink = page.js("getComputedStyle(document.body).color")
    assert page.js("getComputedStyle(document.querySelector('svg text')).fill") == ink


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
