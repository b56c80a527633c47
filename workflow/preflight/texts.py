"""Makes findings of their texts in findings.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from common.findings import Finding

_TEXTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("findings.toml").read_text("utf-8"))


def finding(code: str, *arms: str, sides: tuple[tuple[str, ...], ...] = (), **facts: object) -> Finding:
    """The finding of a code about these arms; `facts` are what its texts have in braces."""
    texts = {field: text.format(**facts) for field, text in _TEXTS[code].items()}
    return Finding(code=code, arms=arms, sides=sides, **texts)
