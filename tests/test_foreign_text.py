"""What a log or a service writes is shown as text: it steers no terminal, forges no line, and is nowhere live."""

import json
import re
import unicodedata

import pandas as pd
import pytest

from analysis.report.__main__ import _write_table
from analysis.verdict.verdict_block import escaped
from common.shown import shown

NAMES = (
    "\x1b]0;PWNED\x07\x1b[2J\x1b[31mX_s",
    "\u202eabc_s",
    "x\nb vs a: 9.99x faster at equal work. CLAIMED\n_s",
    "x\rb vs a: 9.99x\x0bb vs a: 9.99x\x85b vs a: 9.99x\u2028b vs a: 9.99x_s",
    "\x9b2JX_s",
    "\ud800_s",
)
LIVE = "x\r\r1. see http://evil.example/login or www.evil.example @octocat <b>\r\r_s"
FORMULA = "=cmd|'/c calc'!A1_s"


def log(file, *names, **more):
    gen_s = 5 if file.name.startswith("b") else 6
    rows = [{"step": step, "step_s": 4 + gen_s + 0.1 * step, "gen_s": gen_s, "train_s": 1} for step in range(1, 7)]
    text = "".join(json.dumps(row | dict.fromkeys(names, 0.5) | more) + "\n" for row in rows)
    file.write_text(text)
    return file


ARMS = ("compare", "a=a.jsonl", "b=b.jsonl")


def steering(text):
    """The characters of a text that a terminal obeys, or does not show."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")}


@pytest.mark.parametrize("words", ["", "--markdown", "--json"])
def test_names_of_a_log_on_a_terminal(tmp_path, rolloutbench, words):
    for file in ("a.jsonl", "b.jsonl"):
        more = {"mode": "m\x1b[31m\nb vs a: 9.99x", "gen_note": "1\x1b[2J\nb vs a: 9.99x"}
        log(tmp_path / file, *NAMES, **more)
    code, out, err = rolloutbench(*ARMS, "--verdict-only", *words.split())
    said = out + err
    assert code == 0 and "Traceback" not in err, err
    assert ('"arm": "b"' if words == "--json" else "b vs a: ") in said and not steering(said), said
    assert not re.search(r"^\W*b vs a: 9\.99x", said, re.MULTILINE), said
    if words == "--json":
        assert json.loads(out)


def test_a_file_of_several_runs_in_an_error(tmp_path, rolloutbench):
    for file in ("a.jsonl", "b.jsonl"):
        rows = [{"step": step, "step_s": 9, "run": f"r{run}\x1b[2J\nx"} for run in (1, 2) for step in range(1, 4)]
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = rolloutbench(*ARMS)
    assert code == 1 and not steering(err) and err.count("\n") == 1, err


CLAIM = "x\nb vs a: 9.9x faster. CLAIMED"


@pytest.mark.parametrize(
    ("file", "given"),
    [
        (f"{CLAIM}.jsonl", f"{CLAIM}.jsonl"),
        ("x\x1b[31m.jsonl", "x\x1b[31m.jsonl"),
        (f"folder/{CLAIM}.jsonl", "folder"),
        (f"folder/events.out.tfevents.{CLAIM}", "folder"),
        (f"folder/run-{CLAIM}.wandb", "folder"),
    ],
)
def test_a_file_whose_name_is_not_seen_as_it_is_is_no_log(tmp_path, rolloutbench, file, given):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    log(tmp_path / file)
    log(tmp_path / "b.jsonl")
    code, _, err = rolloutbench("compare", f"a={given}", "b=b.jsonl")
    assert code == 1 and err.startswith("error: ") and err.count("\n") == 1 and not steering(err), err


def test_a_colon_in_a_files_name_begins_nothing(tmp_path, rolloutbench):
    for file in ("x: y.jsonl", "b.jsonl"):
        log(tmp_path / file)
    code, out, err = rolloutbench("compare", "a=x: y.jsonl", "b=b.jsonl", "--verdict-only")
    assert code == 0 and "\nstep counts the steps; " in out and "y.jsonl: step counts" not in out, out + err


def test_the_report_as_markdown_is_nowhere_live(tmp_path, rolloutbench):
    for file in ("a.jsonl", "b.jsonl"):
        log(tmp_path / file, LIVE)
    assert rolloutbench(*ARMS, "--report", "out").code == 0
    for text in ((tmp_path / "out" / "report.md").read_text(), rolloutbench(*ARMS, "--verdict-only", "--markdown").out):
        assert "b vs a: " in text
        assert not steering(text)
        assert not re.search(r"http://|(?<!\\)<b>|www\.|@\w", text), text


@pytest.mark.parametrize(
    ("text", "as_markdown"),
    [
        ("a@b <i>", "a@&#8203;b \\<i\\>"),
        ("https://h/x", "https\\://h/x"),
        ("R&D &lt;b&gt;", "R\\&D \\&lt;b\\&gt;"),
        ("1: 2.5", "1: 2.5"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown(text, as_markdown):
    assert escaped(text) == as_markdown


def test_text_that_begins_like_a_formula_is_a_text_in_csv_and_itself_in_parquet(tmp_path, rolloutbench):
    for file, more in (("a.jsonl", 1), ("b.jsonl", 0)):
        rows = [
            {"step": step, "phase": phase, "parent": parent, "seconds": seconds + more}
            for step in range(1, 7)
            for phase, parent, seconds in (
                ("total", "", 9 + 0.1 * step),
                (FORMULA, "total", 5),
                ("@SUM(A1)", "-", 1),
                ("=1", "-", 1),
            )
        ]
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert rolloutbench(*ARMS, "--report", "out").code == 0
    tables = tmp_path / "out" / "tables"
    cells = {
        str(cell)
        for file in tables.glob("*.csv")
        for cell in pd.read_csv(file, dtype=str, keep_default_na=False).to_numpy().ravel()
    }
    assert f"'{FORMULA}" in cells and not {cell for cell in cells if cell[:1] in ("=", "@", "\t", "\r")}
    heads = {head for file in tables.glob("*.csv") for head in pd.read_csv(file, dtype=str).columns}
    assert "'@SUM(A1)" in heads and not {head for head in heads if head.lstrip(" ")[:1] in ("=", "@", "+", "-")}
    assert FORMULA in pd.read_parquet(tables / "phases.parquet").astype(str).to_numpy().ravel()


def test_numbers_in_columns_of_text_are_numbers_in_csv(tmp_path):
    texts = ["+1", "-1.5", "-1e-05", "+1+1", "-cmd(1)", "@x", "\tx", "\rx", "-", "x=1", " =1", " -1", "", None]
    frame = pd.DataFrame({"text": texts, "kind": pd.Categorical(texts), "number": range(len(texts))})
    _write_table(frame, tmp_path / "x")
    read = pd.read_csv(tmp_path / "x.csv", dtype=str, keep_default_na=False)
    written = ["+1", "-1.5", "-1e-05", "'+1+1", "'-cmd(1)", "'@x", "'\tx", "'\rx", "-", "x=1", "' =1", " -1", "", ""]
    assert [one.replace("\n", "\r") for one in read["text"]] == written == [*read["kind"].str.replace("\n", "\r")]


def test_what_is_harmless_is_shown_as_it_is():
    for text in ("größer 2×", "日本語", "👨‍👩‍👧", "a\u00a0b", "✗ not resolved"):
        assert shown(text) == text
