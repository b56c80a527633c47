"""Keeps the numbers of many steps in little memory: their names once, their values packed."""

from __future__ import annotations

import struct
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from sys import intern
from weakref import WeakValueDictionary


class _Shape:
    """The names that rows of numbers share, and how their values are packed."""

    __slots__ = ("__weakref__", "last", "packing", "places")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.places = {intern(name): place for place, name in enumerate(names)}
        self.packing = struct.Struct(f"{len(names)}d")
        self.last = b""


_shapes: WeakValueDictionary[tuple[str, ...], _Shape] = WeakValueDictionary()
_VALUE = struct.Struct("d")


class Numbers(Mapping[str, float]):
    """A read-only mapping of 8 bytes a number: rows with the same names, in the same order, share these.

    A log of 100,000 steps of 60 numbers takes some 60 MB so, and ten times that as dictionaries.
    """

    __slots__ = ("_shape", "_values")

    def __init__(self, numbers: Mapping[str, float]) -> None:
        names = tuple(numbers)
        shape = _shapes.get(names)
        if shape is None:
            shape = _Shape(names)
            _shapes[tuple(shape.places)] = shape
        values = shape.packing.pack(*numbers.values())
        # Equal rows, such as those of the rounding to three decimals, are kept once.
        if values == shape.last:
            values = shape.last
        shape.last = values
        self._shape, self._values = shape, values

    def __getitem__(self, name: str) -> float:
        value: float = _VALUE.unpack_from(self._values, 8 * self._shape.places[name])[0]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._shape.places)

    def __len__(self) -> int:
        return len(self._shape.places)

    def __contains__(self, name: object) -> bool:
        return name in self._shape.places

    def __eq__(self, other: object) -> bool:
        # Of packed values, not-a-number is what it is.
        same = isinstance(other, Numbers) and self._shape is other._shape and self._values == other._values
        return same or super().__eq__(other)

    def keys(self) -> KeysView[str]:
        return self._shape.places.keys()

    def as_dict(self) -> dict[str, float]:
        """The numbers as a dictionary of its own, which may be changed."""
        return dict(zip(self._shape.places, self._shape.packing.unpack(self._values), strict=True))

    def items(self) -> ItemsView[str, float]:
        return self.as_dict().items()

    def values(self) -> ValuesView[float]:
        return self.as_dict().values()

    def __repr__(self) -> str:
        return repr(self.as_dict())


def packed(numbers: Mapping[str, float]) -> Numbers:
    """The same numbers in little memory."""
    return numbers if isinstance(numbers, Numbers) else Numbers(numbers)
