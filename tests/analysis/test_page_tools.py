"""What a reader does with the page: finds a place, copies a table."""

import io
import json
import math

import pandas as pd
import pytest
from chromium import eventually

ENTER, CONTROL = "\ue007", "\ue009"


@pytest.fixture
def opened(page, report):
    page.open(report / "report.html")
    return page


def test_the_first_screen_is_one_picture_with_a_line_an_arm_and_at_most_three_caveats(page, report):
    page.open(report / "report.html", 1280, height=800)
    first = page.js("document.querySelector('main').firstElementChild.querySelector('svg').getAttribute('aria-label')")
    verdicts = json.loads((report / "verdict.json").read_text())["arms"]
    arms = "[...document.querySelectorAll('#answer .arm')]"
    shown = page.js(f"{arms}.map(a => [a.dataset.arm, a.querySelector('.verdict').textContent])")
    assert [arm for arm, _ in shown] == [one["arm"] for one in verdicts]
    for (_, line), one in zip(shown, verdicts, strict=True):
        assert one["sentence"] == line and one["arm"] in first
    assert " s" in first and "x (" in first, "seconds and ratios are in the picture's text, too"
    caveats = page.js("[...document.querySelectorAll('#answer .words > .caveats > li')].map(c => c.textContent)")
    assert 0 < len(caveats) <= 3
    assert page.js("document.querySelector('#answer .words').getBoundingClientRect().top") <= 800


def test_nothing_is_said_twice(page, report):
    page.open(report / "report.html")
    page.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    texts = page.js(
        "[...document.querySelectorAll('.verdict, .caveats li, .lines li, .settle, .note, figcaption')]"
        ".map(e => e.textContent.trim()).filter(t => t.length > 40)"
    )
    every = page.js("document.querySelector('main').textContent")
    for one in json.loads((report / "verdict.json").read_text())["arms"]:
        assert every.count(one["sentence"]) == 1
        assert all(every.count(caveat["text"]) == 1 for caveat in one["caveats"])
    assert len(texts) > 5
    assert not [text for text in texts if text.startswith("vllm") and texts.count(text) > 1]


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
    head = opened.js("document.querySelectorAll('table.speed thead tr:last-child th')[3]")
    head.find_element("tag name", "button").click()
    pasted = pd.read_csv(io.StringIO(copied(opened, "speed", "Copy TSV")), sep="\t")
    truth = pd.read_parquet(report / "tables" / "comparison.parquet").sort_values("arm_step_s", kind="stable")
    assert pasted["seconds a step, as measured: arm"].tolist() == pytest.approx(truth["arm_step_s"].tolist(), rel=0)
    assert pasted["arms"].tolist() == [f"{r.arm} vs {r.baseline}" for r in truth.itertuples()]
    estimates = pd.read_parquet(report / "tables" / "estimates.parquet").set_index(["estimate", "factors", "arm"])
    per_step = estimates.loc["per_step"].loc[list(zip(truth["factors"], truth["arm"], strict=True))]
    assert pasted["per step: times as fast"].tolist() == pytest.approx(per_step["value"].tolist(), rel=0, nan_ok=True)
    assert pasted["per step: 95% from"].tolist() == pytest.approx(per_step["low"].tolist(), rel=0, nan_ok=True)
    phases = pd.read_csv(io.StringIO(copied(opened, "phases", "Copy TSV")), sep="\t")
    step = pd.read_parquet(report / "tables" / "phases.parquet").iloc[0]
    assert phases.loc[0, f"seconds: {step['arm']}"] == step["mean_s"]


def test_a_copied_text_that_a_spreadsheet_would_compute_is_a_text(opened):
    opened.js("document.querySelector('table.speed tbody tr').cells[0].textContent = '=1+1'")
    opened.js("document.querySelector('table.speed tbody tr').cells[1].textContent = '-1.5'")
    first = copied(opened, "speed", "Copy TSV").splitlines()[1].split("\t")
    assert first[0] == "'=1+1" and first[1].lstrip("-").replace(".", "").isdigit(), first


def column(page, table, index):
    return page.js(f"[...document.querySelector('{table}').tBodies[0].rows].map(r => r.cells[{index}].textContent)")


def test_a_table_sorts_by_its_full_numbers(page, report):
    page.open(report / "report.html")
    at = 3  # after the arms and the swept option: seconds of the baseline, then of the arm
    before = column(page, "table.speed", at)
    values = list(map(float, before))
    assert values != sorted(values) and math.isfinite(sum(values))
    button = page.js(f"document.querySelectorAll('table.speed thead button')[{at}]")
    head = f"document.querySelectorAll('table.speed thead button')[{at}].parentElement"
    seen = []
    for _ in range(3):
        button.click()
        sort = page.js(f"{head}.getAttribute('aria-sort')")
        seen.append((sort, column(page, "table.speed", at)))
    ascending = sorted(before, key=float)
    assert seen == [("ascending", ascending), ("descending", ascending[::-1]), (None, before)]
    assert page.complaints() == []
