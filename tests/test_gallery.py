"""The gallery: reports of published figures are made anew and compared; those of trained runs belong to their plans."""

import re
from xml.etree import ElementTree

import pytest

from scripts import gallery

from .importing import ROOT


def test_every_page_has_an_experiment():
    pages = {path.stem for path in gallery.FOLDER.glob("*.md")} - {"index", "claims"}
    assert pages == set(gallery.ENTRIES)


@pytest.mark.parametrize("name", [name for name in gallery.ENTRIES if name not in gallery.TRAINED])
def test_a_report_of_published_figures_is_as_the_page_shows_it(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    verdict, picture = gallery.made(name)
    page = (gallery.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert gallery.page_with(name, page, verdict) == page, "run `python scripts/gallery.py` with its name"
    assert (gallery.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == picture


@pytest.mark.parametrize("name", gallery.TRAINED)
def test_a_report_of_trained_runs_has_a_verdict_for_each_arm_of_its_plan(name):
    config = gallery.plan_of(name).config
    page = (gallery.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- verdict: ")[2].partition("<!-- end of verdict -->")[0]
    titles = re.findall(r"^\*\*(\S+?) vs (\S+?)[:, ]", shown, re.MULTILINE)
    rivals = set(config.arms) - {config.baseline}
    assert dict(titles) == dict.fromkeys(rivals, config.baseline)
    picture = (gallery.FOLDER / f"{name}.svg").read_bytes()
    assert ElementTree.fromstring(picture).tag.endswith("svg") and len(picture) < 100_000
