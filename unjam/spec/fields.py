"""Mappings to dataclasses and back, each mistake with its file, line and field."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from unjam.spec.documents import Document, join, quoted

T = TypeVar("T")


def nearest(word: str, known: Iterable[str]) -> str:
    """A fix for an unknown word: the nearest known one, else all of them."""
    names = list(known)
    close = get_close_matches(word.lower(), names, n=1)
    return f"did you mean {close[0]}?" if close else f"use {', '.join(names)}"


def read_dataclass(kind: type[T], value: object, path: str, document: Document) -> T:
    """An instance of the dataclass `kind` from the mapping at a dotted path of a document.

    Fields may be int, float (finite), str, bool, Any, literals, mappings with text keys, tuples of
    one kind, other dataclasses, and any of them or None. One with a default may be left out.

    Raises:
        InputError: a field is unknown, missing or of another type.
    """
    if not isinstance(value, Mapping):
        raise document.error(path, f"must be a mapping of fields, not {quoted(value)}")
    hints = get_type_hints(kind)
    known = {x.name: x for x in fields(cast(Any, kind))}
    for key in value:
        if key not in known:
            raise document.error(join(path, key), f"unknown; {nearest(key, known)}")
    found: dict[str, Any] = {}
    for name, entry in known.items():
        here = join(path, name)
        if name in value:
            found[name] = _read(hints[name], value[name], here, document)
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise document.error(here, "missing: add it")
    return kind(**found)


def _read(hint: Any, value: Any, path: str, document: Document) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = next(x for x in arguments if x is not types.NoneType)
        return None if value is None else _read(inner, value, path, document)
    if origin is Literal:
        return _read_literal(arguments, value, path, document)
    if is_dataclass(hint):
        return read_dataclass(cast(type[Any], hint), value, path, document)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise document.error(path, f"must be a list, not {quoted(value)}")
        items = (_read(arguments[0], x, join(path, i), document) for i, x in enumerate(value))
        return tuple(items)
    if origin is not None:
        if not isinstance(value, Mapping):
            raise document.error(path, f"must be a mapping, not {quoted(value)}")
        return {k: _read(arguments[1], v, join(path, k), document) for k, v in value.items()}
    return value if hint is Any else _read_scalar(hint, value, path, document)


def _read_literal(known: tuple[Any, ...], value: object, path: str, document: Document) -> object:
    if isinstance(value, str) and value in known:
        return value
    fix = nearest(str(value), [str(x) for x in known])
    raise document.error(path, f"{quoted(value)} is unknown; {fix}")


def _read_scalar(hint: Any, value: Any, path: str, document: Document) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise document.error(path, f"must be a finite number, not {quoted(value)}")
        return number
    if hint is not float and type(value) is hint:
        return value
    kinds = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    raise document.error(path, f"must be {kinds[hint]}, not {quoted(value)}")


def to_plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, tuples as lists, NumPy scalars as Python's."""
    if is_dataclass(value) and not isinstance(value, type):
        return {x.name: to_plain(getattr(value, x.name)) for x in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(x) for x in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):  # a subclass, such as np.float64, becomes the plain kind
            return kind(value)
    return to_plain(value.item())
