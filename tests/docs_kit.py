"""The parts of docs/ that are made from the code: ``make docs`` writes them anew.

Such a part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

import asyncio
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo

from tests.tiny import byte_level_tokenizer
from torl.config import Recipe, Rollout, Section, builtin_recipes
from torl.insight import catalog
from torl.rollout.agent import Agent, run_episode
from torl.samplers.base import Seed
from torl.samplers.scripted import ScriptedSampler
from torl.tasks import KINDS
from torl.tokens import Vocabulary
from torl.tools import PythonTool
from torl.types import Task, Trajectory

DOCS = Path(__file__).parent.parent / "docs"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def current(page: str) -> str:
    """A page with its generated parts made anew."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().rstrip()}\n\n{part[3]}", page)


def pages() -> list[Path]:
    """The pages of docs/ that hold a generated part."""
    return [path for path in sorted(DOCS.glob("*.md")) if _PART.search(path.read_text(encoding="utf-8"))]


# Recipes


def recipe_keys() -> str:
    """Every key of a recipe by section, from the docstrings of its fields."""
    top = {name: field for name, field in Recipe.model_fields.items() if _section(field) is None}
    out = ["### The run itself", "", _table("", top)]
    for name, field in Recipe.model_fields.items():
        if section := _section(field):
            out += [f"### `{name}`", "", _table(f"{name}.", section.model_fields)]
    return "\n".join(out)


def dotted_keys() -> set[str]:
    """The dotted names of all keys, sections left out."""
    found = set()
    for name, field in Recipe.model_fields.items():
        section = _section(field)
        found |= {f"{name}.{key}" for key in section.model_fields} if section else {name}
    return found


def _section(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _table(prefix: str, fields: dict[str, FieldInfo]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        meaning = _cell(" ".join((field.description or "").split()))
        kind = _cell(_type(field.annotation) + _bounds(field))
        rows.append(f"| `{prefix}{name}` | {kind} | {_default(field.default)} | {meaning} |")
    return "\n".join([*rows, ""])


def _type(annotation: Any) -> str:
    """``int | None`` as "integer or none"."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_type, arguments))
    if origin is list:
        return f"list of {_type(arguments[0])}s"
    if origin is dict:
        return "mapping of names to numbers"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "none"}
    return names[annotation]


def _bounds(field: FieldInfo) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [
        f"{sign} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, sign in signs.items()
        if hasattr(bound, name)
    ]
    return f", {', '.join(found)}" if found else ""


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if value == "":
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def recipe_list() -> str:
    """The built-in recipes, each with its line."""
    rows = [f"| `{name}` | {_cell(line)} |" for name, line in builtin_recipes().items()]
    return "\n".join(["| recipe | what it is |", "|---|---|", *rows])


def kinds() -> str:
    """The kinds of built-in tasks."""
    rows = [f"| `{name}` | {_cell(kind.doc)} |" for name, kind in KINDS.items()]
    return "\n".join(["| kind | what it asks |", "|---|---|", *rows])


# Metrics


def metrics() -> str:
    """The catalogue of metrics, a table for each section of names."""
    head, rule, *rows = catalog.markdown().rstrip().split("\n")
    sections: dict[str, list[str]] = {}
    for row in rows:
        sections.setdefault(row.removeprefix("| `").partition("/")[0], []).append(row)
    tables = [f"## `{name}/`\n\n" + "\n".join([head, rule, *found]) for name, found in sections.items()]
    return "\n\n".join(tables)


# The example of concepts.md

CALL = "Let me compute this with Python.\n```python\nprint(12 * 31)\n```\n```output"
LAST = "The answer is \\boxed{372}."


def episode() -> Trajectory:
    """One call and an answer: the words are given, all the rest is the real rollout and sandbox."""
    vocabulary = Vocabulary(byte_level_tokenizer(420))
    end = vocabulary.tokenizer.eos_token_id

    def script(_: Seed, context: Any) -> list[int]:
        first = "```output\n372" not in vocabulary.decode(list(context))
        return vocabulary.encode(CALL) if first else [*vocabulary.encode(LAST), end]

    sampler = ScriptedSampler(vocabulary, script, frozenset([end]), version=4)
    task = Task("add/7", "What is 12 * 31?", "372")
    prompt = vocabulary.encode(task.problem)

    async def play() -> Trajectory:
        tool = PythonTool()
        try:
            agent = Agent(sampler, vocabulary, lambda _: prompt, Rollout(), {"python": tool})
            return await run_episode(agent, task, 0, sampler.open(prompt, [(0,)])[0], prompt)
        finally:
            await tool.close()

    return asyncio.run(play())


def tokens() -> str:
    """The ids of the example, one a row."""
    vocabulary, trajectory = Vocabulary(byte_level_tokenizer(420)), episode()
    rows = ["| position | text of the id | written by | `sampled` | `loss_mask` | `versions` |"]
    rows.append("|---:|---|---|---:|---:|---:|")
    columns = (trajectory.ids, trajectory.sampled, trajectory.loss_mask, trajectory.versions)
    for n, (token, sampled, mask, version) in enumerate(zip(*columns, strict=True)):
        text = _cell(repr(vocabulary.decode([token]))[1:-1].replace("\\\\", "\\"))
        author = "policy" if sampled else "environment"
        rows.append(f"| {n} | {_code(text)} | {author} | {sampled} | {mask} | {version} |")
    return "\n".join(rows)


def _code(text: str) -> str:
    """A code span whose text may hold backticks; a space alone is shown as ␣."""
    shown = text.replace(" ", "␣")
    return f"```` {shown} ````" if "`" in shown else f"`{shown}`"


PARTS: dict[str, Callable[[], str]] = {
    "recipes": recipe_list,
    "keys": recipe_keys,
    "kinds": kinds,
    "metrics": metrics,
    "tokens": tokens,
}


def main() -> None:
    for path in pages():
        path.write_text(current(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote docs/{path.name}")


if __name__ == "__main__":
    main()
