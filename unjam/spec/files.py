"""Files on disk: reads with a clear cause, and writes that happen whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from unjam.spec.documents import Document, file_error, parse_mapping
from unjam.spec.errors import InputError

__all__ = ["Document", "check_output_dir", "read_mapping", "read_text", "write_files", "write_text"]

StrPath = str | os.PathLike[str]

MOST_BYTES = 16 << 20

_FIXES = {
    errno.EACCES: "check its permissions or choose another path",
    errno.EPERM: "check its permissions or choose another path",
    errno.EROFS: "choose a path that can be written",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EEXIST: "a file has that name; choose another path",
    errno.ENOSPC: "free some space or choose another path",
    errno.EDQUOT: "free some space or choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def _system_error(path: StrPath, deed: str, error: OSError | ValueError) -> InputError:
    """What the operating system refused, on one line and with a fix."""
    reason, fix = str(error), "check the path"
    if isinstance(error, OSError) and error.errno is not None:
        reason = os.strerror(error.errno)
        fix = _FIXES.get(error.errno, fix)
    return file_error(os.fspath(path), f"cannot be {deed} ({reason}): {fix}")


def read_text(path: StrPath) -> str:
    """The text of a file of at most 16 MiB of UTF-8.

    Raises:
        InputError: it is missing, unreadable, too large or binary.
    """
    file = os.fspath(path)
    try:
        with open(file, "rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _system_error(path, "read", error) from None
    if len(data) > MOST_BYTES:
        raise file_error(file, f"over {MOST_BYTES >> 20} MiB: give a YAML or JSON file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise file_error(file, "not a text file: give a YAML or JSON file in UTF-8")
    return text


def read_mapping(path: StrPath) -> Document:
    """Read a YAML or JSON file whose top level is a mapping.

    Raises:
        InputError: it cannot be read, is empty or malformed, or holds something else.
    """
    return parse_mapping(read_text(path), os.fspath(path))


def write_text(path: StrPath, text: str) -> None:
    """Write UTF-8 text; see `write_files`."""
    write_files({path: text})


def write_files(files: Mapping[StrPath, str | bytes]) -> None:
    """Write files whole or not at all: all into temporary files beside them, which then take names.

    Text is written as UTF-8. Links are followed, permissions kept; a device or pipe is written in
    place, before the others take their names.

    Raises:
        InputError: one cannot be written; what was there before is untouched.
    """
    staged: list[tuple[StrPath, str, str]] = []
    try:
        for path, content in files.items():
            data = (
                content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
            )
            staged += _stage(path, data)
        while staged:
            path, temporary, target = staged[0]
            with _naming(path):
                os.replace(temporary, target)
            staged.pop(0)
    finally:
        for _, temporary, _ in staged:
            with suppress(OSError):
                os.unlink(temporary)


@contextmanager
def _naming(path: StrPath) -> Iterator[None]:
    """Turn what the operating system refuses into a line that names the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _system_error(path, "written", error) from None


def _stage(path: StrPath, content: str | bytes) -> list[tuple[StrPath, str, str]]:
    """Put a file's content beside it: path, temporary and final name; nothing for a device."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    with _naming(path):
        target = os.path.realpath(path)
        mode = os.stat(target).st_mode if os.path.exists(target) else None
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "")
        if mode is not None and not stat.S_ISREG(mode):
            with open(target, "wb") as stream:
                stream.write(data)
            return []
        return [(path, _write_beside(target, data, mode), target)]


def _write_beside(target: str, data: bytes, mode: int | None) -> str:
    """A new temporary file in the folder of `target`, on disk when this returns."""
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(6)}.tmp")
    # The mode of a new file is left to the user's umask.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(handle, "wb") as stream:
            if mode is not None:
                os.fchmod(handle, stat.S_IMODE(mode))
            stream.write(data)
            stream.flush()
            os.fsync(handle)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


def check_output_dir(path: StrPath) -> None:
    """Make sure that files can be written to a folder, creating it and its parents if need be.

    Raises:
        InputError: it cannot be created or written; no new folder is left behind.
    """
    folder = Path(path)
    created: list[Path] = []
    try:
        for part in reversed([folder, *folder.parents]):
            if not part.is_dir():
                part.mkdir()
                created.append(part)
        probe = folder / f".{secrets.token_hex(6)}.tmp"
        probe.touch(exist_ok=False)
        probe.unlink()
    except (OSError, ValueError) as error:
        for part in reversed(created):
            with suppress(OSError):
                part.rmdir()
        raise _system_error(path, "used as output folder", error) from None
