"""The gallery: reports of published figures are made anew and compared; the others fit their configuration."""

from __future__ import annotations

import re

import pytest

from scripts import gallery

from .importing import ROOT

READ = [name for name in gallery.ENTRIES if gallery.is_read(gallery.planned(name))]


def test_every_page_has_an_experiment() -> None:
    pages = {path.stem for path in gallery.FOLDER.glob("*.md")} - {"index"}
    assert pages == set(gallery.ENTRIES) and len(READ) == 3


@pytest.mark.parametrize("name", READ)
def test_a_report_of_published_figures_is_as_the_page_shows_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    verdict, picture = gallery.made(name)
    page = (gallery.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert gallery.page_with(name, page, verdict) == page, "run `python scripts/gallery.py` with its name"
    assert (gallery.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == picture


@pytest.mark.parametrize("name", sorted(set(gallery.ENTRIES) - set(READ)))
def test_a_report_of_a_training_names_the_arms_of_its_configuration(name: str) -> None:
    """To train them again takes minutes."""
    config = gallery.planned(name).config
    page = (gallery.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    verdict = page.partition("<!-- verdict:")[2].partition("<!-- end of verdict -->")[0]
    named = set(re.findall(r"^(?:\*\*|\| )([\w.-]+)(?: vs|:| \||,)", verdict, re.MULTILINE))
    assert named >= set(config.arms) - {config.baseline}
