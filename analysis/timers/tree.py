"""What a declared timer tree is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# The words that trainers share. A verl `gen` and a TRL `generate` are both "generation", so that arms
# of different trainers can stand in one stacked bar.
CATEGORIES = ("generation", "weight sync", "log-probs", "rewards", "loss+backward", "optimizer", "other")


@dataclass(frozen=True)
class Phase:
    """One timer: its path in the step's tree, the words that a reader sees, and its category.

    A last path segment of `*` stands for any name (a reward function's, say). `category` is that of the
    phase's own time, the part which no child covers.
    """

    path: str
    label: str
    description: str
    category: str

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"category of {self.path} must be one of {CATEGORIES} (got {self.category!r})")

    @property
    def depth(self) -> int:
        return self.path.count("/")


@dataclass(frozen=True)
class TimerTree:
    """The timers that one release series of a trainer emits with some engines.

    `series` is a version prefix such as `1.16`; `phases` are in the order in which they are shown, parents
    before children, the root first.
    """

    trainer: str
    series: str
    engines: tuple[str, ...]
    phases: tuple[Phase, ...]
    source: str

    @property
    def name(self) -> str:
        return f"{self.trainer} {self.series}"

    @property
    def root(self) -> str:
        return self.phases[0].path

    def matches(self, version: str) -> bool:
        return version == self.series or version.startswith(self.series + ".")

    def declared(self, path: str) -> Phase | None:
        """The declaration that covers a path, by itself or through a `*`; None when there is none."""
        wildcard = path.rsplit("/", 1)[0] + "/*"
        return next((p for p in self.phases if p.path in (path, wildcard)), None)

    def phase(self, path: str) -> Phase:
        """A phase to show for any path: a declared one's words, or the bare name marked as undeclared."""
        found = self.declared(path)
        name = path.rsplit("/", 1)[-1]
        if found is None:
            return Phase(path, f"{name} (undeclared)", f"Not in the declared timers of {self.name}.", "other")
        return Phase(path, found.label.replace("*", name), found.description, found.category)

    def in_order(self, paths: Iterable[str]) -> list[str]:
        """Paths in depth-first order: declared siblings as declared, then the undeclared by name."""
        rank = {p.path: i for i, p in enumerate(self.phases)}

        def key(path: str) -> list[tuple[int, str]]:
            parts = path.split("/")
            heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
            return [(rank.get(head, len(rank)), part) for head, part in zip(heads, parts, strict=True)]

        return sorted(set(paths), key=key)
