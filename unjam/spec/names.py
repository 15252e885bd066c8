"""Names that a user gives for presets or files."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path


def preset_folder(kind: str) -> Path:
    """Folder of the package's data files of one kind (``models``, ``clusters``)."""
    return Path(str(files("unjam.spec.presets"))) / kind


def preset_names(kind: str, suffix: str) -> list[str]:
    """Names of the presets of one kind, sorted."""
    return sorted(x.name.removesuffix(suffix) for x in preset_folder(kind).glob(f"*{suffix}"))


def unknown_name(kind: str, name: str, known: Sequence[str]) -> str:
    """One line that says a name is unknown and suggests the nearest."""
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {name!r}: {hint} (a path to a file works too)"


def looks_like_path(name: str) -> bool:
    """Whether a name is meant as a file or folder rather than a preset."""
    return "/" in name or name.endswith((".json", ".yaml", ".yml")) or Path(name).exists()
