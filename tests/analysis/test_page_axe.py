"""axe-core finds nothing against the page: light, dark and narrow, as it opens and with everything unfolded."""

import importlib.resources

import pytest

AXE = importlib.resources.files("axe_playwright_python") / "axe.min.js"
RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then(
  found => done(found.violations.map(v => [v.id, v.help, v.nodes.slice(0, 4).map(n => n.html.slice(0, 200))])),
  error => done(String(error)));
"""


def violations(page):
    """What axe-core has against the open page; its own script comes by the browser's debugger, past the page's CSP."""
    page.driver.execute_script(AXE.read_text(encoding="utf-8"))
    return page.driver.execute_async_script(RUN)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (320, False)])
def test_axe_finds_nothing_and_the_page_needs_nothing_but_itself(page, report, width, dark):
    page.open(report / "report.html", width, dark)
    assert violations(page) == []
    page.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert violations(page) == [], "with everything unfolded"
    assert page.complaints() == [] and page.requests() == []
    assert page.js("document.documentElement.scrollWidth") <= width
    light = page.js("getComputedStyle(document.body).backgroundColor")
    assert light == ("rgb(20, 23, 27)" if dark else "rgb(252, 252, 250)")
    ink = page.js("getComputedStyle(document.body).color")
    assert page.js("getComputedStyle(document.querySelector('svg text')).fill") == ink
