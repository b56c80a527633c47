"""Checks keys and value types of overrides against verl's own configuration.

Uses only the standard library: the job calls it with Hydra's configuration in the stack, and the controller with the
tables in `trainers/verl/packaged/`, which finds typos before a stack is built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from common.messages import did_you_mean

# Settings whose values may have another type than their default.
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
    """The problem with a key, if any; `added` if it has a leading +, `known` are verl's own keys."""
    if added:
        return f"verl {version} has {key} already; write it without the leading +" if key in known else None
    if key in known:
        return None
    last = key.rpartition(".")[2]
    # The same name in another section is more likely than a similar key.
    elsewhere = sorted(one for one in known if one.rpartition(".")[2] == last)
    hint = f" (did you mean {elsewhere[0]}?)" if len(elsewhere) == 1 else did_you_mean(key, sorted(known))
    return (
        f"{key} is no setting of verl {version}{hint}; to add one that verl's configuration lacks, write it with a "
        "leading +"
    )


def kind_problem(key: str, was: Any, now: Any) -> str | None:
    """The problem with a value whose type differs from verl's own value."""
    if was is None or now is None or was == "???":
        return None
    kinds, wanted = next((kinds, word) for kinds, word in _KINDS if isinstance(was, kinds))
    if isinstance(now, kinds) and isinstance(now, bool) == isinstance(was, bool):
        return None
    if not isinstance(now, bool) and isinstance(now, _ALSO.get(key.rpartition(".")[2], ())):
        return None
    quoted = ", without quotes" if isinstance(now, str) and wanted in ("true or false", "a number") else ""
    return f"{key} must be {wanted}{quoted}, as verl's own {was!r} (got {now!r})"
