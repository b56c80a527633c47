"""What a reader does with the page: finds a place, copies a table."""

import io
import json

import pandas as pd
import pytest
from chromium import eventually

ENTER, CONTROL = "\ue007", "\ue009"


@pytest.fixture
def opened(page, report):
    page.open(report / "report.html")
    return page


def test_the_first_screen_tells_which_how_much_whether_to_believe_it_and_what_next(page, report):
    page.open(report / "report.html", 1280, height=800)
    rows = page.js(
        "[...document.querySelectorAll('.overview tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    verdicts = json.loads((report / "verdict.json").read_text())["arms"]
    assert [(row[0], row[1]) for row in rows] == [(one["arm"], one["sentence"]) for one in verdicts]
    for (_, _, caveat, settle), one in zip(rows, verdicts, strict=True):
        block = page.js(
            f"document.querySelectorAll('.answer')[{verdicts.index(one)}].querySelector('.verdict').textContent"
        )
        assert block == one["sentence"]
        assert one["caveats"][0]["text"] in caveat and settle == "; ".join(one["settle"]) != ""
    assert page.js("document.querySelector('.overview').getBoundingClientRect().bottom") <= 800
    links = page.js("[...document.querySelectorAll('.overview a')].map(a => a.getAttribute('href'))")
    assert links == page.js("[...document.querySelectorAll('.answer')].map(a => `#${a.id}`)")


def copied(page, table, label):
    """What the clipboard has after the keyboard pressed that button of the first such table."""
    page.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    button = (
        f"[...document.querySelector('table.{table}').closest('.scroll').nextElementSibling.querySelectorAll('button')]"
    )
    button += f".find(b => b.textContent === '{label}')"
    page.js(f"{button}.focus()")
    page.press(ENTER)
    eventually(
        page, lambda: page.js(f"{button}.parentElement.querySelector('output').textContent.startsWith('Copied')")
    )
    page.js("document.body.insertAdjacentHTML('beforeend', '<textarea id=pasted></textarea>')")
    page.find("#pasted").send_keys(CONTROL, "v")
    text = page.js("document.getElementById('pasted').value")
    page.js("document.getElementById('pasted').remove()")
    return text


def test_a_table_copies_as_tsv_with_every_digit_as_it_is_sorted(opened, report):
    head = opened.js(
        "[...document.querySelectorAll('table.estimates thead th')].find(h => h.textContent === 'speed-up')"
    )
    head.find_element("tag name", "button").click()
    pasted = pd.read_csv(io.StringIO(copied(opened, "estimates", "Copy TSV")), sep="\t")
    truth = pd.read_parquet(report / "tables" / "estimates.parquet").sort_values("value", kind="stable")
    assert pasted["speed-up"].tolist() == pytest.approx(truth["value"].tolist(), rel=0, nan_ok=True)
    assert pasted["95% from"].tolist() == pytest.approx(truth["low"].tolist(), rel=0, nan_ok=True)
    assert pasted["runs of the arm"].tolist() == truth["arm_runs"].tolist()
    assert pasted["arms"].tolist() == [f"{r.arm} vs {r.baseline}" for r in truth.itertuples()]
    phases = pd.read_csv(io.StringIO(copied(opened, "phases", "Copy TSV")), sep="\t")
    step = pd.read_parquet(report / "tables" / "phases.parquet").iloc[0]
    assert phases.loc[0, f"{step['arm']}: mean"] == step["mean_s"]


def test_a_copied_text_that_a_spreadsheet_would_compute_is_a_text(opened):
    opened.js("document.querySelector('table.estimates tbody tr').cells[0].textContent = '=1+1'")
    opened.js("document.querySelector('table.estimates tbody tr').cells[1].textContent = '-1.5'")
    first = copied(opened, "estimates", "Copy TSV").splitlines()[1].split("\t")
    assert first[0] == "'=1+1" and first[1].lstrip("-").replace(".", "").isdigit(), first
