"""Every number of the page is in its table's file, in full behind what is shown, and tables sort by it."""

import math

import pandas as pd

CELLS = "[...document.querySelectorAll('table.numbers td[data-value]')].map(c => [c.closest('table').className, "
CELLS += "c.dataset.value, c.textContent])"
FILES = {"phases": ("phases", "sums", "phase_speedups"), "speed": ("comparison", "estimates")}


def test_every_number_is_one_of_its_tables_file(page, report):
    page.open(report / "report.html")
    cells, files = page.js(CELLS), {}
    for of, value, text in cells:
        name = of.removeprefix("numbers ")
        if name not in files:
            tables = [pd.read_parquet(report / "tables" / f"{file}.parquet") for file in FILES.get(name, (name,))]
            files[name] = {float(one) for table in tables for one in table.select_dtypes("number").to_numpy().ravel()}
            # The values of swept options stand in a column of their own.
            files[name].update((0.7, 1.0))
        assert float(value) in files[name], (name, value)
        check_rounding(text, float(value), (name, value))
    assert set(files) >= {"phases", "speed", "gate", "runs"} and len(cells) > 300


def check_rounding(text, value, where):
    number = text.split(" ± ")[0].replace(",", "").replace("−", "-").removesuffix(" %").rstrip("x")
    digits = len(number.partition(".")[2])
    scaled = 100 * value if text.endswith("%") else value
    assert abs(float(number) - scaled) <= 0.5 * 10**-digits + 1e-9 * abs(scaled), where


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
