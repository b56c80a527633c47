"""Abacus, an engine for tests: samples completions from a table of bigrams."""

import numpy as np

from engines import Engine

ABACUS = Engine(name="abacus", label="Abacus", aliases=("suanpan",), number_bytes=8, max_sequences_option="beads")


def draw(table, start, end, length, random):
    """A completion of at most so many characters up to the end's, by the logits of what follows each one."""
    found = []
    while len(found) < length and (found or [start])[-1] != end:
        odds = np.exp(logits := table[(found or [start])[-1]])
        found.append(int(random.choice(len(logits), p=odds / odds.sum())))
    return found
