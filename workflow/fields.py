"""What are the parts of the configuration made of? Sections closed to unknown keys, and numbers within reason."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, StrictInt

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
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*$"
CURRENCY_PATTERN = r"^[A-Z]{3}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=40)]


# A part of the configuration is frozen, and closed to unknown keys.
SECTION = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, serialize_by_alias=True
)
