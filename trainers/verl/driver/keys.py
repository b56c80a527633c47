"""Is this a setting that verl has, and a value of its kind? By the settings of verl's own packaged configuration.

Only the standard library: the job asks it of what Hydra composed in the stack, and the controller of the tables in
`trainers/verl/packaged/`, so that a slip is told before a stack is built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from node.exit_codes import nearest

# Where verl takes a value of another kind than its default's.
_ALSO: Mapping[str, tuple[type, ...]] = {
    "target_modules": (list,),
    "train_files": (list,),
    "val_files": (list,),
    "logger": (str,),
    "reshard_after_forward": (int,),
    "rollout_is_threshold": (str,),
    "rollout_rs_threshold": (str,),
    "lora_A_init_method": (list,),
}
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "a section with settings of its own"),
)


def key_problem(key: str, added: bool, known: Collection[str], version: str) -> str | None:
    """What is wrong with a key, if anything; `added` where it is written with a leading +, `known` are verl's own."""
    if added:
        return f"verl {version} has {key} already; write it without the leading +" if key in known else None
    if key in known:
        return None
    last = key.rpartition(".")[2]
    # A key in another place is a likelier slip than one that merely looks alike.
    elsewhere = sorted(one for one in known if one.rpartition(".")[2] == last)
    hint = f"; did you mean {elsewhere[0]!r}?" if len(elsewhere) == 1 else nearest(key, sorted(known))
    return (
        f"{key} is no setting of verl {version}{hint} (to add one that verl's configuration lacks, write it with a "
        "leading +)"
    )


def kind_problem(key: str, was: Any, now: Any) -> str | None:
    """What is wrong with a value, if it is of another kind than verl's own."""
    if was is None or now is None or was == "???":
        return None
    kinds, wanted = next((kinds, word) for kinds, word in _KINDS if isinstance(was, kinds))
    if isinstance(now, kinds) and isinstance(now, bool) == isinstance(was, bool):
        return None
    if not isinstance(now, bool) and isinstance(now, _ALSO.get(key.rpartition(".")[2], ())):
        return None
    quoted = ", without quotes" if isinstance(now, str) and wanted in ("true or false", "a number") else ""
    return f"{key} must be {wanted}{quoted}, as verl's own {was!r} (got {now!r})"
