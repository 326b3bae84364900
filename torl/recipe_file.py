"""A recipe as text: where it is found, how it is read, how one key of it is changed."""

import re
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from torl.errors import UserError
from torl.imports import nearest

DEFAULT_REWARDS = {"correctness": 1.0}


def read(name_or_path: str, overrides: list[str]) -> dict[str, Any]:
    """The keys of a built-in recipe or of a YAML file, with ``key=value`` overrides applied.

    Raises UserError for what cannot be found or is not of that form.
    """
    text = read_text(name_or_path)
    try:
        data = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{name_or_path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{name_or_path}: a recipe is a mapping of keys, not a {type(data).__name__}")
    data.setdefault("name", re.sub(r"\.ya?ml$", "", Path(name_or_path).name))  # torl-1.5b is no suffix
    for item in overrides:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"override {item!r} is not of the form key=value, e.g. learner.lr=1e-5")
        try:
            put(data, key, scalar(value))
        except yaml.YAMLError as error:
            raise UserError(f"override {item!r}: the value is not valid YAML: {error}") from error
    return data


def read_text(name_or_path: str) -> str:
    """The text of a recipe, as it lies in its file."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise UserError(f"no recipe file {name_or_path}; built-in recipes: {', '.join(names())}")
        return path.read_text(encoding="utf-8")
    resource = resources.files("torl.recipes") / f"{name_or_path}.yaml"
    if not resource.is_file():
        hint = nearest(name_or_path, names())
        raise UserError(
            f"no recipe named {name_or_path!r}.{hint} Built-in: {', '.join(names())}; "
            "or give a path to a .yaml file"
        )
    return resource.read_text(encoding="utf-8")


def names() -> list[str]:
    """The recipes that come with torl."""
    files = resources.files("torl.recipes").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def scalar(value: str) -> Any:
    """YAML's reading of a value, but 1e-5 is a number too (YAML 1.1 wants 1.0e-5)."""
    try:
        return float(value) if "e" in value.lower() and not value.isalpha() else yaml.safe_load(value)
    except ValueError:
        return yaml.safe_load(value)


def put(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets data[a][b] for "a.b". A reward's import path may itself contain dots."""
    head, dot, rest = dotted.partition(".")
    if not dot or (":" in dotted.split("=", maxsplit=1)[0] and head != "rewards"):
        data[dotted] = value
    elif head == "rewards":
        # Beside the default ones: to add a penalty must not take correctness away.
        data.setdefault("rewards", dict(DEFAULT_REWARDS))[rest] = value
    else:
        child = data.setdefault(head, {})
        if not isinstance(child, dict):
            raise UserError(f"{dotted}: {head!r} is a value, not a section with keys")
        put(child, rest, value)
