"""Models by name or configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unjam.spec.errors import InputError
from unjam.spec.files import read_mapping
from unjam.spec.hf.reader import model_from_config
from unjam.spec.model import ModelSpec
from unjam.spec.names import looks_like_path, preset_folder, preset_names, unknown_name

__all__ = ["load_model", "model_from_config", "model_presets"]


def model_presets() -> list[str]:
    """Names of the models that come with the package."""
    return preset_names("models", ".json")


def load_model(name_or_path: str) -> tuple[ModelSpec, dict[str, Any]]:
    """A model by preset name, path of a ``config.json``, or folder that holds one.

    Returns:
        The model, and the configuration fields it was read from.

    Raises:
        InputError: unknown name (suggests the nearest), or a file that does not describe a model.
    """
    known = model_presets()
    if not name_or_path:
        raise InputError(f"MODEL is empty: name one of {', '.join(known)}, or a config.json")
    if name_or_path.lower() in known:
        name, path = name_or_path.lower(), preset_folder("models") / f"{name_or_path.lower()}.json"
    elif looks_like_path(name_or_path):
        path = Path(name_or_path)
        if path.is_dir():
            path = path / "config.json"
        name = path.parent.resolve().name if path.name == "config.json" else path.stem
    else:
        raise InputError(unknown_name("model", name_or_path, known))
    document = read_mapping(path)
    config = document.mapping
    return model_from_config(name, config, file=str(path), lines=document.lines), config
