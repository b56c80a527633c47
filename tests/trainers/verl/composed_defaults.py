"""verl's own configuration of two releases, as Hydra composes it: stands in for a stack that composes.

`defaults/<version>.json` is the released wheel's `ppo_trainer` without overrides, flat and with every reference
resolved; `defaults/references.json` lists which settings follow which. test_experiments.py composes both again.
"""

import functools
import json
from pathlib import Path

from trainers.verl.driver.overrides import sections_above
from trainers.verl.given import parsed

FOLDER = Path(__file__).parent / "defaults"


@functools.cache
def defaults(version):
    """verl's settings and their defaults, by dotted key; empty sections and lists are values."""
    return json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8"))


@functools.cache
def references(version):
    """Setting -> the setting whose value it takes unless it is set itself."""
    return json.loads((FOLDER / "references.json").read_text(encoding="utf-8"))[version]


def composed(args):
    """What a stack composes of `trainer_args`."""
    version, given = args["version"], dict(parsed(args["overrides"]))
    filled = {section for key in given for section in sections_above(key)}
    values = {key: value for key, value in defaults(version).items() if key not in filled} | given
    follows = references(version)
    for key in follows:
        source = key
        while source not in given and source in follows:
            source = follows[source]
        if source in given:
            values[key] = given[source]
    return {"version": version, "settings": values}
