"""The page as a browser shows it: its numbers, and that it needs nothing but itself."""

import pytest
from page_results import HOSTILE, JAPANESE


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
    shown = page.js(
        "[...document.querySelectorAll('table.samples')].map(t => t.tBodies[0].rows[0].cells[1].textContent)"
    )
    assert [text.startswith(start) for text, start in zip(shown, (HOSTILE, "x" * 600), strict=False)] == [True, True]
    assert len(shown) == 5 and "␀" in shown[2] and shown[4].startswith("(empty)")
    assert page.js("document.scripts.length") == 1 and page.js("document.images.length") == 0
    cells = "[...document.querySelectorAll('table.samples td')]"
    assert page.js(f"{cells}.every(c => c.scrollWidth <= c.clientWidth)"), "a text leaves its cell"
