"""What the parts of a configuration are made of: numbers and names in their bounds, sources, options, the environment.

Parts are frozen and closed to unknown keys, every default is where its field is, and the docstring under a field is its
documentation (it becomes the JSON schema's description).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt

from common.dotted import nested_settings
from common.published import check_published, check_text, check_variable
from node.hub import source_kind

# More than any run could do: beyond it a number is a slip of the keyboard, and overflows in a library later on.
MOST = 1_000_000_000


def _no_boolean(value: Any) -> Any:
    # YAML reads yes and on as true, which a float would take as 1.0.
    if isinstance(value, bool):
        raise ValueError(f"must be a number (got {str(value).lower()})")
    return value


PositiveInt = Annotated[StrictInt, Field(ge=1, le=MOST)]
Count = Annotated[StrictInt, Field(ge=0, le=MOST)]
# What numpy and torch both take.
Seed = Annotated[StrictInt, Field(ge=0, le=2**32 - 1)]
Number = Annotated[float, BeforeValidator(_no_boolean)]
FUNCTION_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*$"
CURRENCY_PATTERN = r"^[A-Z]{3}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=40)]


# A part of the configuration is frozen, and closed to unknown keys.
SECTION = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, serialize_by_alias=True
)


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to unknown keys."""

    model_config = SECTION


def require_source(source: str, revision: str | None, builtins: tuple[str, ...], local: str) -> None:
    """A `ValueError` for a built-in source that is not there, and for a hub id without a revision."""
    kind = source_kind(source)
    if kind == "builtin" and source not in builtins:
        raise ValueError(f"source must be {' or '.join(builtins)}, {local} or a hub id (got {source!r})")
    if kind == "hub" and not revision:
        raise ValueError(
            f"{source!r} is read as a hub id, and needs a revision (a commit), so that it cannot change under a "
            f"result; for {local} write a path, such as ./{source}"
        )


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    check_published(options)
    # In one order, however they are written: a trainer that takes them as a list has them in its fingerprint.
    return _ordered(nested_settings(options))


def _ordered(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _ordered(value) if isinstance(value, Mapping) else value for key, value in sorted(options.items())}


def _checked_environment(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        check_variable(name)
        check_text(value, name)
    return env


Options = Annotated[dict[str, Any], AfterValidator(_checked_options)]
Environment = Annotated[dict[str, str], AfterValidator(_checked_environment)]
