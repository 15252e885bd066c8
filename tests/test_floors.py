"""The layout rule: a folder imports only from folders on lower floors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "unjam"
FLOORS = {
    "spec": 0,
    "cost": 1,
    "schedule": 1,
    "balance": 1,
    "twin": 2,
    "runtime": 2,
    "search": 3,
    "train": 3,
    "export": 3,
    "lab": 4,
    "cli": 5,
}
FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Folders of unjam that a file imports from."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names.update(x.name for x in node.names)
    parts = [x.split(".") for x in names]
    return {x[1] for x in parts if x[0] == "unjam" and len(x) > 1}


def folder(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=[str(x.relative_to(ROOT)) for x in FILES])
def test_imports_only_from_lower_floors(path: Path) -> None:
    mine = folder(path)
    if mine == "__init__":  # the package's face looks down on everything
        return
    for other in imported(path) - {mine}:
        assert FLOORS[other] < FLOORS[mine], f"{mine} imports {other}"


def test_every_folder_has_a_floor() -> None:
    folders = {x.name for x in ROOT.iterdir() if x.is_dir() and x.name != "__pycache__"}
    assert folders <= set(FLOORS)


@pytest.mark.parametrize("heavy", ["torch", "plotly"])
def test_heavy_libraries_stay_out_of_the_planner(heavy: str) -> None:
    for path in FILES:
        if folder(path) in {"runtime", "train"}:
            continue
        tree = ast.parse(path.read_text())
        for node in tree.body:
            names = [x.name for x in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert heavy not in {x.split(".")[0] for x in names}, f"{path} imports {heavy}"
