"""Which sums does the built-in data set ask for?"""

from __future__ import annotations

import random

DEFAULT_ROWS = 512


def arithmetic_rows(rows: int, seed: int) -> list[dict[str, str]]:
    """Short sums of one or two operations, as rows of `question` and `answer`.

    The same rows and seed give the same sums on every Python: only `Random.random` is drawn from, whose sequence
    is promised never to change. The answers are whole numbers, some of them negative.
    """
    draw = random.Random(seed).random

    def whole(low: int, high: int) -> int:
        return low + int(draw() * (high - low + 1))

    def pick(choices: tuple[str, ...]) -> str:
        return choices[whole(0, len(choices) - 1)]

    made = []
    for _ in range(rows):
        terms = [whole(2, 99), whole(2, 99)]
        signs = [pick(("+", "-", "*"))]
        if signs[0] == "*":
            terms[1] = whole(2, 12)
        if draw() < 0.5:
            signs.append(pick(("+", "-")))
            terms.append(whole(2, 99))
        value = {"+": terms[0] + terms[1], "-": terms[0] - terms[1], "*": terms[0] * terms[1]}[signs[0]]
        if len(signs) == 2:
            value += terms[2] if signs[1] == "+" else -terms[2]
        formula = f"{terms[0]}" + "".join(f" {sign} {term}" for sign, term in zip(signs, terms[1:], strict=True))
        form = pick(("What is {}?", "Compute {}.", "{} = ?"))
        made.append({"question": form.format(formula), "answer": str(value)})
    return made
