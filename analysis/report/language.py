"""In which language is a text, as far as its letters tell? Japanese and Chinese share letters that look different."""

from __future__ import annotations

import re
from collections.abc import Iterable

_KANA = re.compile(r"[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_HANGUL = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_LATIN = re.compile(r"[A-Za-z]")


def east_asian(texts: Iterable[str]) -> str:
    """`ja`, `ko` or `zh` by the letters of all texts together; "" where there are none, or they do not tell.

    Kana is Japanese and hangul Korean. Han alone is told by what either country's own standard of letters lacks.
    """
    text = " ".join(texts)
    if _KANA.search(text):
        return "ja"
    if _HANGUL.search(text):
        return "ko"
    han = "".join(_HAN.findall(text))
    if not _encodes(han, "shift_jis"):
        return "zh"
    return "" if _encodes(han, "gb2312") else "ja"


def language_of(text: str) -> str:
    """The language that most of a text is in, "" for English; a Latin letter counts as a third of a Han one."""
    others = sum(len(letters.findall(text)) for letters in (_KANA, _HANGUL, _HAN))
    return east_asian([text]) if 3 * others > len(_LATIN.findall(text)) else ""


def _encodes(text: str, standard: str) -> bool:
    try:
        text.encode(standard)
    except UnicodeEncodeError:
        return False
    return True
