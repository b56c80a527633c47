"""The test data's generator is a module beside the tests; the page is made once, and one browser opens it."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]


@pytest.fixture(scope="session")
def page():
    from chromium import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture
def drawn():
    """Asked for by a test whose data the figures must stand, in a module that is `undrawn`."""


@pytest.fixture
def undrawn(request, monkeypatch):
    """Reports without figures: most of a small report's time is their drawing, and a test of numbers needs none."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("analysis.figures.curves.figures_of", lambda *_: [])


@pytest.fixture(scope="module")
def no_figures():
    """The same for all reports of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.figures.curves.figures_of", lambda *_: [])
        yield


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The folder of a report on a sweep (tests/analysis/page_results.py); not to be written to."""
    from page_results import write_report

    return write_report(tmp_path_factory.mktemp("page") / "quick")
