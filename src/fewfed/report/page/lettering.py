"""How much room names take in figures, as far as that is known before anybody's font is."""

from __future__ import annotations

import unicodedata

_NARROW, _WIDE = frozenset("fijlrtIJ.,:;!'|()[]/\\- "), frozenset("mwMWQO%@&#+<=>^~…−±—")
_ELLIPSIS = "…"


def width(text: str) -> float:
    """Pixels of a text of the size that figures have: no less than in the widest of the usual fonts."""
    return sum(map(_letter, text))


def shortened(text: str, room: float) -> str:
    """A text that fits, without its middle where it would not: names that differ often do so at the end."""
    if width(text) <= room:
        return text
    start = _fitting(text, 2 * (room - _letter(_ELLIPSIS)) / 3)
    end = _fitting(text[::-1], (room - _letter(_ELLIPSIS)) / 3)
    return f"{text[:start]}{_ELLIPSIS}{text[len(text) - end :]}"


def _fitting(text: str, room: float) -> int:
    """How many of the first letters fit."""
    for number, letter in enumerate(text):
        room -= _letter(letter)
        if room < 0:
            return number
    return len(text)


def _letter(letter: str) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF":  # As wide as they are high, and so are small pictures.
        return 13.0
    if letter in _NARROW:
        return 5.2
    if letter in _WIDE:
        return 12.2
    if letter.isascii():
        return 9.6 if letter.isupper() else 7.8
    return 14.2 if letter.isupper() else 11.0  # As the widest of Cyrillic.
