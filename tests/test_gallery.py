"""The gallery: reports of published figures are made anew and compared."""

from __future__ import annotations

import pytest

from scripts import gallery

from .importing import ROOT


def test_every_page_has_an_experiment() -> None:
    pages = {path.stem for path in gallery.FOLDER.glob("*.md")} - {"index"}
    assert pages == set(gallery.ENTRIES)


@pytest.mark.parametrize("name", gallery.ENTRIES)
def test_a_report_of_published_figures_is_as_the_page_shows_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    verdict, picture = gallery.made(name)
    page = (gallery.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert gallery.page_with(name, page, verdict) == page, "run `python scripts/gallery.py` with its name"
    assert (gallery.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == picture
