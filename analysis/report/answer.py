"""What stands at the top of the report: for each arm a sentence, and the four estimates of its speed."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.estimates.arm import ACROSS, WITHIN
from analysis.estimates.disagreement import disagreement, has_intervals
from analysis.estimates.equal_work import Row as EstimateRow
from analysis.headline.case import MOST_PLACES
from analysis.report.cells import Cell, times
from analysis.report.comparison_tables import ESTIMATE_WORDS
from analysis.report.content import Content
from analysis.runs import factors_label, rows_of

Number = tuple[str, tuple[Cell, ...], tuple[Cell, ...]]
"""What it is, the value (two where it spans factor combinations), and its interval."""


@dataclass(frozen=True)
class ArmAnswer:
    """One arm against the baseline."""

    arm: str
    sentence: str
    unequal: int
    numbers: tuple[Number, ...]
    note: str


def answers(content: Content) -> list[ArmAnswer]:
    """One for each headline."""
    found = []
    for headline in content.headlines:
        rows = content.estimates[content.estimates["arm"] == headline.arm]
        spans = rows["factors"].nunique() > 1
        numbers: list[Number] = []
        for name, label in ESTIMATE_WORDS.items():
            have = [r for r in rows_of(rows[(rows["estimate"] == name) & (rows["value"] > 0)])]
            if not have:
                continue
            ends = [min(have, key=lambda r: r.value), max(have, key=lambda r: r.value)]
            values = tuple(times(r.value).at("estimates", r.Index, "value") for r in (ends if spans else ends[:1]))
            if len({cell.text for cell in values}) == 1:
                values = values[:1]
            one = ends[0]
            told = not spans and one.low > 0 and one.high > 0 and one.scope == ACROSS
            interval = (
                (times(one.low).at("estimates", one.Index, "low"), times(one.high).at("estimates", one.Index, "high"))
                if told
                else ()
            )
            numbers.append((label, values, interval))
        base = headline.baseline
        note = f"Seconds of {base} over seconds of {headline.arm}: above 1 {headline.arm} is faster. "
        if spans:
            note += "From the lowest to the highest factor combination that has a value; the table has the intervals."
        elif any(interval for _, _, interval in numbers):
            note += "Small: the 95% interval."
        elif (rows["scope"] == WITHIN).any():
            note += "No interval: one pair of runs does not tell how much other runs differ."
        else:
            note += "No interval: there is nothing to resample."
        found.append(ArmAnswer(headline.arm, headline.sentence, headline.unequal, tuple(numbers), note))
    return found


def banner_title(content: Content) -> str:
    """The banner's first words: whether step time misleads for sure, and at which factor combinations; "" without."""
    apart, sure = [], True
    for (factors, _), group in content.estimates.groupby(["factors", "arm"], sort=False):
        rows: dict[str, EstimateRow] = {
            str(r["estimate"]): {str(k): v for k, v in r.items()} for r in group.to_dict("records")
        }
        if disagreement(rows):
            apart.append(factors_label(str(factors)))
            sure = sure and has_intervals(rows)
    names = list(dict.fromkeys(apart))
    if not names:
        return ""
    where = "here" if len(names) == content.estimates["factors"].nunique() else f"at {' and '.join(names)}"
    if where != "here" and len(names) > MOST_PLACES:
        where = f"at {len(names)} of the factor combinations"
    return f"Step time alone {'misleads' if sure else 'may mislead'} {where}."
