"""Defines the types of configuration sections: bounded numbers, names, sources, options and the environment.

Sections are frozen and refuse unknown keys. The docstring under a field becomes its description in the JSON schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, field_validator

from common.dotted import nested_settings
from common.errors import UserError
from common.published import check_published, check_text, check_variable
from node.hub import commit_command, source_kind

NO_COMMIT = "write-the-commit-here"
"""A revision in a file that `rolloutbench new` wrote without the hub; nothing starts with it."""
# More than any run needs: a larger number is a typo, and overflows in a library later.
MOST = 1_000_000_000


def _no_boolean(value: Any) -> Any:
    # YAML reads yes and on as true, which a float field would accept as 1.0.
    if isinstance(value, bool):
        raise ValueError(f"must be a number (got {str(value).lower()})")
    return value


PositiveInt = Annotated[StrictInt, Field(ge=1, le=MOST)]
Count = Annotated[StrictInt, Field(ge=0, le=MOST)]
# The range of both numpy and torch.
Seed = Annotated[StrictInt, Field(ge=0, le=2**32 - 1)]
Number = Annotated[float, BeforeValidator(_no_boolean)]
FUNCTION_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*$"
CURRENCY_PATTERN = r"^[A-Z]{3}$"
_LONGEST_NAME = 40
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=_LONGEST_NAME)]

SECTION = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, serialize_by_alias=True
)


def given_names(text: str, count: int) -> list[str]:
    """The names in `--names A,B`, one for each arm in order; a `UserError` for another number or a wrong name."""
    names = text.split(",")
    right = all(re.fullmatch(NAME_PATTERN, name) and len(name) <= _LONGEST_NAME for name in names)
    if not right or len({*names}) != count or len(names) != count:
        raise UserError(
            f"--names must name the {count} arms in order, each in letters (A-Z, a-z), "
            f"digits, '_', '.' and single '-', {_LONGEST_NAME} at most (got {text!r})"
        )
    return names


class Section(BaseModel):
    """A section of the configuration."""

    model_config = SECTION

    @field_validator("*", mode="before")
    @classmethod
    def _text_can_be_published(cls, value: Any) -> Any:
        """Every text is written into results: a description, a prompt, a source."""
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, str):
                check_text(one, "the text")
        return value


def require_source(
    source: str, revision: str | None, builtins: tuple[str, ...], local: str, is_data: bool = False
) -> None:
    """A `ValueError` for an unknown built-in source, and for a hub id without a revision or with a placeholder."""
    kind = source_kind(source)
    if kind == "builtin" and source not in builtins:
        raise ValueError(f"source must be {' or '.join(builtins)}, {local} or a hub id (got {source!r})")
    if kind == "hub" and not revision:
        raise ValueError(
            f"{source!r} is read as a hub id, and needs a revision (a commit), so that it cannot change under a "
            f"result; for {local} write a path, such as ./{source}"
        )
    if kind == "hub" and revision == NO_COMMIT:
        raise ValueError(
            f"revision is still {NO_COMMIT!r}; write the commit of {source}, which `{commit_command(source, is_data)}` "
            "prints first"
        )


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    check_published(options)
    # Sorted: a trainer that takes them as a list has their order in its fingerprint.
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
