"""Typed access to the fields of a configuration, with errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unjam.spec.documents import Document, join
from unjam.spec.errors import InputError

# Beyond any model; products of such numbers still fit into 64 bits or a float.
MOST = 10**9
MOST_LAYERS = 1000


@dataclass(frozen=True)
class Fields:
    """A configuration and the document it came from.

    A field may have several spellings; the first that is present counts. A missing number is an
    error: the defaults of a framework's class are not the published model.

    Attributes:
        config: its fields.
        document: for messages.
        path: dotted path of the configuration in the document.
    """

    config: Mapping[str, Any]
    document: Document
    path: str = ""

    def error(self, name: str, what: str) -> InputError:
        """One line that names file, line and field."""
        return self.document.error(join(self.path, name), what)

    def find(self, *names: str) -> tuple[str, Any]:
        """Name and value of the first spelling that is not null, else (names[0], None)."""
        for name in names:
            if self.config.get(name) is not None:
                return name, self.config[name]
        return names[0], None

    def has(self, *names: str) -> bool:
        """Whether any spelling is present and not null."""
        return self.find(*names)[1] is not None

    def integer(self, *names: str, least: int = 1) -> int:
        """A whole number of at least `least`; missing is an error."""
        name, value = self.find(*names)
        if value is None:
            also = f" (also spelt {', '.join(names[1:])})" if len(names) > 1 else ""
            raise self.error(names[0], f"is missing{also}")
        return self.check_integer(name, value, least)

    def optional(self, *names: str, default: int = 0, least: int = 0) -> int:
        """A whole number whose absence means that the model has no such part."""
        name, value = self.find(*names)
        return default if value is None else self.check_integer(name, value, least)

    def layers(self) -> int:
        """Number of decoder layers, each of which becomes an object."""
        count = self.integer("num_hidden_layers")
        if count > MOST_LAYERS:
            raise self.error("num_hidden_layers", f"{count}: must be at most {MOST_LAYERS}")
        return count

    def check_integer(self, name: str, value: Any, least: int) -> int:
        """`value` if it is a whole number from `least` to `MOST`."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"{_short(value)}: must be a whole number")
        if value < least:
            raise self.error(name, f"{value}: must be at least {least}")
        if value > MOST:
            raise self.error(name, f"{_short(value)}: must be at most {MOST}")
        return value

    def flag(self, name: str, absent: bool | None = None) -> bool:
        """A boolean; `absent` is what published configurations mean by leaving it out."""
        value = self.config.get(name)
        if value is None:
            if absent is None:
                raise self.error(name, "is missing")
            return absent
        if not isinstance(value, bool):
            raise self.error(name, f"{_short(value)}: must be true or false")
        return value

    def items(self, name: str, count: int) -> list[Any]:
        """A list with one entry per layer."""
        value = self.config.get(name)
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, (list, tuple)):
            raise self.error(name, f"{_short(value)}: must be a list of {count} entries")
        if len(value) != count:
            raise self.error(name, f"has {len(value)} entries for {count} layers")
        return list(value)

    def choices(self, name: str, count: int, known: Sequence[object]) -> list[Any]:
        """A list with one entry per layer, each one of `known`."""
        values = self.items(name, count)
        for value in values:
            if value not in known:
                fix = ", ".join(map(str, known))
                raise self.error(name, f"{_short(value)} is unknown; known: {fix}")
        return values

    def layer_numbers(self, name: str, count: int) -> set[int]:
        """Numbers of some of `count` layers, from 0; absent means none."""
        value = self.config.get(name)
        if value is None:
            return set()
        if not isinstance(value, (list, tuple)):
            raise self.error(name, f"{_short(value)}: must be a list of layer numbers")
        found = {self.check_integer(name, x, 0) for x in value}
        if any(x >= count for x in found):
            raise self.error(name, f"{max(found)}: there are only {count} layers, from 0")
        return found

    def per_layer(self, *names: str, count: int, least: int = 1) -> list[int]:
        """A whole number for every layer, given once or as a list."""
        name, value = self.find(*names)
        if isinstance(value, (list, tuple)):
            return [self.check_integer(name, x, least) for x in self.items(name, count)]
        return [self.integer(*names, least=least)] * count


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
