"""Reading with lines, writing whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from unjam.spec import files
from unjam.spec.documents import dump_yaml, parse_mapping
from unjam.spec.errors import InputError
from unjam.spec.files import check_output_dir, read_mapping, write_files, write_text

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(
        ["1e5", "yes", "no", "1:30", "0x1F", "010", "~", "2024-01-01", "<<", "=", "#"]
    )
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(st.text(max_size=8), TREES, min_size=1, max_size=4)


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# Reading


def test_yaml_lines_point_at_the_keys() -> None:
    text = "# head\nname: x\ntiers:\n  - span: 8\n    rate: 1e12\n  - {span: 0}\n"
    document = parse_mapping(text, "c.yaml")
    assert document.mapping == {"name": "x", "tiers": [{"span": 8, "rate": 1e12}, {"span": 0}]}
    assert document.lines == {
        "name": 2, "tiers": 3, "tiers.0": 4, "tiers.0.span": 4, "tiers.0.rate": 5,
        "tiers.1": 6, "tiers.1.span": 6,
    }  # fmt: skip


def test_json_lines_equal_those_of_the_same_yaml() -> None:
    text = '{\n "a": [1,\n  {"b": "x, {y}: \\"z\\""}, []],\n "c": {},\n "a.b": {"c":\n null}\n}'
    as_json, as_yaml = parse_mapping(text, "f.json"), parse_mapping(text, "f.yaml")
    assert as_json.mapping == as_yaml.mapping == json.loads(text)
    assert as_json.lines == {
        "a": 2, "a.0": 2, "a.1": 3, "a.1.b": 3, "a.2": 3, "c": 4, "a.b": 5, "a.b.c": 5,
    }  # fmt: skip


@settings(max_examples=50)
@given(MAPPINGS)
def test_json_lines_cover_every_field(mapping: dict[str, object]) -> None:
    text = json.dumps(mapping, indent=1)
    document = parse_mapping(text, "f.json")
    assert document.mapping == mapping
    assert document.lines == parse_mapping(text, "f.yaml").lines


@settings(max_examples=50)
@given(MAPPINGS)
def test_dumped_yaml_reads_back_exactly(mapping: dict[str, object]) -> None:
    text = dump_yaml(mapping)
    assert repr(parse_mapping(text, "f.yaml").mapping) == repr(mapping)


@settings(max_examples=50)
@given(MAPPINGS)
def test_other_yaml_readers_see_the_same_strings(mapping: dict[str, object]) -> None:
    def strings(value: object) -> object:
        if isinstance(value, dict):
            return {k: strings(v) for k, v in value.items()}
        if isinstance(value, list):
            return [strings(x) for x in value]
        return value if isinstance(value, str) else type(value) is bool

    assert strings(yaml.safe_load(dump_yaml(mapping))) == strings(mapping)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e12", 1e12), ("-1.5E-3", -1.5e-3), (".5", 0.5), ("3.", 3.0), ("007", 7), ("+4", 4),
        (".inf", float("inf")), ("-.INF", float("-inf")), ("true", True), ("no", "no"),
        ("1:30", "1:30"), ("0x10", "0x10"), ("2024-01-01", "2024-01-01"), ("1_000", "1_000"),
        ("", None), ("~", None), ("'1'", "1"),
    ],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    found = parse_mapping(f"a: {text}", "f").mapping["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("f.yaml", "", "f.yaml: empty"),
        ("f.yaml", " \n# nothing\n", "f.yaml: holds None"),
        ("f.yaml", "- 1", "f.yaml: holds [1]"),
        ("f.json", "3", "f.json: holds 3"),
        ("f.yaml", "a: 1\nb:\n  c: 2\n  c: 3", "f.yaml:4: field b.c: given twice"),
        ("f.json", '{"b":\n{"c": 2,\n"c": 3}}', "f.json:3: field b.c: given twice"),
        ("f.yaml", "a: 1\nb: [1, 2\nc: 3", "f.yaml:3: not valid YAML"),
        ("f.yaml", "a: 1\n\tb: 2", "f.yaml:2: not valid YAML"),
        ("f.yaml", "a: \x01", "f.yaml: not valid YAML"),
        ("f.yaml", "a: 1\n---\nb: 2", "f.yaml:2: not valid YAML"),
        ("f.json", '{"a": 1,\n"b" 2}', "f.json:2: not valid JSON"),
        ("f.json", '{"a": %s}' % ("9" * 5000), "f.json: not valid JSON"),
        ("f.yaml", "a: %s" % ("9" * 5000), "f.yaml:1: "),
        ("f.yaml", "a: &x 1\nb: *x", "f.yaml:2: not valid YAML: aliases"),
        ("f.yaml", "a: !!python/name:os.system x", "f.yaml:1: "),
        ("f.yaml", "a: !!set {b: null}", "f.yaml:1: tag"),
        ("f.yaml", "a: !!int x", "f.yaml:1: 'x' is no int"),
        ("f.yaml", "a: 1\n2: b", "f.yaml:2: key '2': quote it"),
        ("f.yaml", "? [a, b]\n: 1", "f.yaml:1: key"),
        ("f.yaml", "a: " + "[" * 5000, "f.yaml: nested too deeply"),
        ("f.json", '{"a": ' + "[" * 100000 + "]" * 100000 + "}", "f.json: nested too deeply"),
    ],
)  # fmt: skip
def test_malformed_text_is_one_line(name: str, text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        parse_mapping(text, name)
    assert words in one_line(error)
    assert len(str(error.value)) < 300


def test_json_without_the_suffix_is_read_as_json() -> None:
    assert parse_mapping('{"a":\t[1,\n\t2]}', "config").mapping == {"a": [1, 2]}
    assert parse_mapping("{a: 1}", "config").mapping == {"a": 1}


def test_a_key_with_a_dot_is_not_a_duplicate() -> None:
    assert parse_mapping('{"a.b": 1, "a": {"b": 2}}', "f.json").mapping["a.b"] == 1


def test_an_error_names_the_nearest_known_line() -> None:
    document = parse_mapping("a:\n  b: 1\n", "f.yaml")
    assert str(document.error("a.b.c", "missing")) == "f.yaml:2: field a.b.c: missing"
    assert str(document.error("d", "missing: add\nit")) == "f.yaml: field d: missing: add it"


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "weights.bin"
    binary.write_bytes(b"\x80\x81\0\0")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: \xe9".encode("latin-1"))
    cases = {
        tmp_path / "none.yaml": "cannot be read (No such file",
        tmp_path: "cannot be read (Is a directory): name a file",
        binary: "not a text file",
        latin: "not a text file",
        binary / "x.yaml": "cannot be read (Not a directory)",
        Path("a\0b"): "cannot be read",
        tmp_path / ("x" * 300): "choose a shorter name",
    }
    for path, words in cases.items():
        with pytest.raises(InputError) as error:
            read_mapping(path)
        assert words in one_line(error)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\nspan: 8\r\n")
    assert read_mapping(path).mapping == {"name": "x", "span": 8}


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 4)
    (tmp_path / "big").write_text("a: 12")
    with pytest.raises(InputError, match="give a YAML or JSON file"):
        read_mapping(tmp_path / "big")


# Writing


def test_write_replaces_and_keeps_mode_and_link(tmp_path: Path) -> None:
    target, link = tmp_path / "t.txt", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_text(link, "n\u00e9w")
    assert target.read_text(encoding="utf-8") == "n\u00e9w"
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(x.name for x in tmp_path.iterdir()) == ["link", "t.txt"]


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_files({tmp_path / "new": b"\0\1"})
    assert (tmp_path / "new").read_bytes() == b"\0\1"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class FullStream:
        def __init__(self, handle: int, _: str) -> None:
            self.handle = handle

        def __enter__(self) -> FullStream:
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.handle)

        write = full

    path = tmp_path / "plan.yaml"
    path.write_text("old")
    if call == "write":
        monkeypatch.setattr(files, "open", FullStream, raising=False)
    else:
        monkeypatch.setattr(os, call, full)
    with pytest.raises(InputError) as error:
        write_text(path, "new")
    monkeypatch.undo()
    assert "No space left on device): free some space" in one_line(error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "plan.yaml", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_in_place() -> None:
    write_text("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_unwritable_targets_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cases = {
        tmp_path: "Is a directory): name a file",
        tmp_path / "file" / "x": "Not a directory",
        tmp_path / "none" / "x": "No such file",
        tmp_path / ("x" * 300): "shorter name",
    }
    for path, words in cases.items():
        with pytest.raises(InputError) as error:
            write_text(path, "x")
        assert words in one_line(error)
    assert [x.name for x in tmp_path.iterdir()] == ["file"]


def test_output_folder_is_created_once(tmp_path: Path) -> None:
    for _ in range(2):
        check_output_dir(tmp_path / "a" / "b")
        assert list((tmp_path / "a" / "b").iterdir()) == []


def test_an_output_folder_that_cannot_be_leaves_no_parents(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bad = [tmp_path / "file", tmp_path / "file" / "x", tmp_path / "a" / "b" / ("x" * 300)]
    for path in bad:
        with pytest.raises(InputError) as error:
            check_output_dir(path)
        assert "cannot be used as output folder" in one_line(error)
    assert [x.name for x in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_write_permission_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "")

    monkeypatch.setattr(Path, "touch", refused)
    with pytest.raises(InputError, match="check its permissions"):
        check_output_dir(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_several_files_are_written_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="name a file, not a folder"):
        write_files({tmp_path / "a": "new", tmp_path / "b": "x", tmp_path / "c": "x"})
    assert (tmp_path / "a").read_text() == "old"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["a", "b"]
    write_files({tmp_path / "a": "new", tmp_path / "c": b"x"})
    assert ((tmp_path / "a").read_text(), (tmp_path / "c").read_text()) == ("new", "x")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["a", "b", "c"]
