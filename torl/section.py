"""The base of a recipe's sections, and its errors as sentences: the key, what was wrong, the choices."""

import difflib
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from torl.errors import UserError

Root = TypeVar("Root", bound="Section")


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are not coerced loosely."""

    model_config = ConfigDict(extra="forbid", validate_default=True, use_attribute_docstrings=True)


def build(root: type[Root], data: dict[str, Any], source: str) -> Root:
    """A section, with those in it, from its data. Raises UserError naming ``source`` and the keys."""
    try:
        return root.model_validate(data)
    except ValidationError as error:
        raise UserError("\n".join(_explain(root, e, source) for e in error.errors())) from error


def _explain(root: type[Section], error: Any, source: str) -> str:
    """One pydantic error as a sentence: the key, what was wrong, the choices."""
    path = [
        str(part) for part in error["loc"] if not str(part).startswith(("list[", "str", "int", "float"))
    ]
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        section = _section(root, path[:-1])
        choices = list(section.model_fields) if section else []
        near = difflib.get_close_matches(path[-1], choices, n=1) or _elsewhere(root, path[-1])
        hint = f" Did you mean {near[0]}?" if near else ""
        return f"{source}: unknown key {key}.{hint} Known here: {', '.join(choices)}"
    if error["type"] == "value_error":
        return f"{source}: {str(error['msg']).removeprefix('Value error, ')}"
    return f"{source}: {key}={error['input']!r}: {error['msg']}"


def _section(root: type[Section], path: list[str]) -> type[Section] | None:
    section = root
    for part in path:
        annotation = section.model_fields[part].annotation if part in section.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, Section)):
            return None
        section = annotation
    return section


def _elsewhere(root: type[Section], key: str) -> list[str]:
    """The dotted names of a key that exists in another section, e.g. lr → learner.lr."""
    found = []
    for name, info in root.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            near = difflib.get_close_matches(key, list(info.annotation.model_fields), n=1, cutoff=0.8)
            found += [f"{name}.{n}" for n in near]
    return found + difflib.get_close_matches(key, list(root.model_fields), n=1)
