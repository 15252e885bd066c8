"""Lists of ``key=value`` as a user types them behind an option."""

from __future__ import annotations

from unjam.spec.errors import InputError


def parse_pairs(option: str, text: str | None) -> dict[str, int | str]:
    """``tp=8,dispatcher=dedup`` as a mapping; whole numbers become int.

    Raises:
        InputError: an item without ``=``, or a key given twice.
    """
    pairs: dict[str, int | str] = {}
    for item in filter(None, (x.strip() for x in (text or "").split(","))):
        key, equals, value = (x.strip() for x in item.partition("="))
        if not equals or not key or not value:
            raise InputError(f"{option} {item}: write key=value, e.g. {option} tp=8,ep=32")
        if key in pairs:
            raise InputError(f"{option} {item}: {key} is given twice; keep one")
        number = value.removeprefix("-")
        pairs[key] = int(value) if number.isdecimal() and number.isascii() else value
    return pairs
