"""Text to mappings and back: YAML and JSON with the line of every field.

YAML is read by the core schema of YAML 1.2, not by PyYAML's 1.1: ``1e12`` is a number, ``no`` is a
word and ``1:30`` is not 90. Duplicate keys, aliases and tags of other types are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from unjam.spec.errors import InputError

_TAG = "tag:yaml.org,2002:"
# First characters and whole-scalar patterns; the first pattern that matches wins.
_PLAIN = {
    "null": ([*"~nN", ""], r"(?:~|null|Null|NULL|)\Z"),
    "bool": ([*"tTfF"], r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": ([*"-+0123456789"], r"[-+]?[0-9]+\Z"),
    "float": (
        [*"-+.0123456789"],
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
    ),
}
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping and where its fields stand.

    Attributes:
        mapping: its content.
        file: name of the file, for messages.
        lines: line of each field by dotted path (``tiers.0.span``), from 1; may be empty.
    """

    mapping: dict[str, Any]
    file: str
    lines: Mapping[str, int] = field(default_factory=dict)

    def error(self, path: str, message: str) -> InputError:
        """``FILE:LINE: field PATH: MESSAGE``; the line is that of the nearest known field."""
        known = path
        while known and known not in self.lines:
            known = known.rpartition(".")[0]
        where = f"{self.file}:{self.lines[known]}" if known else self.file
        return file_error(where, f"field {path}: {message}" if path else message)


def file_error(where: object, message: str) -> InputError:
    """``WHERE: MESSAGE`` as one line."""
    return InputError(" ".join(f"{where}: {message}".split("\n")))


def quoted(value: object, most: int = 60) -> str:
    """`value` as a message shows it: on one line and not too long."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def join(path: str, key: object) -> str:
    """The dotted path of an inner field."""
    return f"{path}.{key}" if path else f"{key}"


def parse_mapping(text: str, file: str) -> Document:
    """A mapping from text: JSON in a ``.json`` file or where it parses as such, else YAML.

    Raises:
        InputError: the text is empty, malformed, or not a mapping.
    """
    if not text.strip():
        raise file_error(file, "empty: write a mapping of fields")
    try:
        value, lines = _parse(text, file)
    except RecursionError:
        raise file_error(file, "nested too deeply: flatten it") from None
    if not isinstance(value, dict):
        raise file_error(file, f"holds {quoted(value)}: write a mapping of fields")
    return Document(value, file, lines)


def _parse(text: str, file: str) -> tuple[Any, dict[str, int]]:
    if file.endswith(".json"):
        return _parse_json(text, file)
    if text.lstrip().startswith("{"):
        try:
            json.loads(text)
        except ValueError:
            return _parse_yaml(text, file)
        return _parse_json(text, file)
    return _parse_yaml(text, file)


# JSON


def _parse_json(text: str, file: str) -> tuple[Any, dict[str, int]]:
    try:
        return json.loads(text), _json_lines(text, file)
    except json.JSONDecodeError as error:
        raise file_error(f"{file}:{error.lineno}", f"not valid JSON: {error.msg}") from None
    except InputError:
        raise
    except ValueError as error:  # an integer with more digits than Python takes
        raise file_error(file, f"not valid JSON: {error}") from None


def _json_lines(text: str, file: str) -> dict[str, int]:
    """Lines of all fields of valid JSON, which the json module does not tell."""
    lines: dict[str, int] = {}
    around: list[tuple[str, set[str] | None]] = []  # path and keys of each open container
    counts: list[int] = []  # items so far in each of them
    path, line, position, expect_key = "", 1, 0, False
    for match in _JSON_TOKEN.finditer(text):
        token = match.group()
        line += text.count("\n", position, match.start())
        position = match.start()
        outer, keys = around[-1] if around else ("", None)
        if token in ("]", "}"):
            around.pop()
            counts.pop()
        elif token == ",":
            expect_key = keys is not None
        elif expect_key and keys is not None:
            key = json.loads(token)
            path = join(outer, key)
            if key in keys:
                raise file_error(f"{file}:{line}", f"field {path}: given twice; keep one")
            keys.add(key)
            lines[path] = line
            expect_key = False
        elif token != ":":
            if around and keys is None:
                path = join(outer, counts[-1])
                counts[-1] += 1
                lines[path] = line
            if token in ("[", "{"):
                expect_key = token == "{"
                around.append((path, set() if expect_key else None))
                counts.append(0)
    return lines


# YAML


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own name and place

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases are not read: write the value out", event.start_mark
            )
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> Any:
        # PyYAML folds some line breaks (U+0085, U+2028) unless they are written as escapes.
        style = None if data.isprintable() else '"'
        return self.represent_scalar(_TAG + "str", data, style=style)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        flat = not any(isinstance(x, dict | list) for x in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flat)


_Dumper.add_representer(str, _Dumper.represent_str)
for _kind, (_first, _pattern) in _PLAIN.items():
    # The dumper keeps the rules of YAML 1.1 too: what either version mistakes is quoted.
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)


def _parse_yaml(text: str, file: str) -> tuple[Any, dict[str, int]]:
    lines: dict[str, int] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        return _build(node, "", lines, file), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}" if mark else file
        reason = error.problem or error.context
        raise file_error(where, f"not valid YAML: {reason}") from None
    except yaml.YAMLError as error:
        raise file_error(file, f"not valid YAML: {error}") from None


def _build(node: yaml.Node | None, path: str, lines: dict[str, int], file: str) -> Any:
    """The value of a node; notes the lines of the fields inside it."""
    if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
        return _build_mapping(node, path, lines, file)
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        values = []
        for i, inner in enumerate(node.value):
            lines[join(path, i)] = inner.start_mark.line + 1
            values.append(_build(inner, join(path, i), lines, file))
        return values
    if isinstance(node, yaml.ScalarNode):
        return _build_scalar(node, file)
    if node is None:
        return None
    raise file_error(f"{file}:{node.start_mark.line + 1}", f"tag {node.tag} is not read: remove it")


def _build_mapping(
    node: yaml.MappingNode, path: str, lines: dict[str, int], file: str
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key_node, inner in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise file_error(f"{file}:{line}", "key is a list or a mapping: write text")
        if key_node.tag != _TAG + "str":
            where = f"{file}:{line}"
            raise file_error(where, f"key {quoted(key_node.value)}: quote it; a key is text")
        key = key_node.value
        if key in out:
            raise file_error(f"{file}:{line}", f"field {join(path, key)}: given twice; keep one")
        lines[join(path, key)] = line
        out[key] = _build(inner, join(path, key), lines, file)
    return out


def _build_scalar(node: yaml.ScalarNode, file: str) -> Any:
    text, kind = node.value, node.tag.removeprefix(_TAG)
    if kind == "str":
        return text
    if kind in _PLAIN and re.match(_PLAIN[kind][1], text):
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return text.lower() == "true"
            return int(text) if kind == "int" else float(re.sub(r"\.(?=[inIN])", "", text))
        except ValueError:  # an integer with more digits than Python takes
            pass
    where = f"{file}:{node.start_mark.line + 1}"
    raise file_error(where, f"{quoted(text)} is no {kind.removeprefix('!')}: write a plain value")


def dump_yaml(value: Any) -> str:
    """YAML that `parse_mapping` reads back exactly; plain types only, keys in their order."""
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=98, indent=2,
        default_flow_style=False,
    )  # fmt: skip
