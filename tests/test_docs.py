"""README and docs/: generated parts are current, code runs, and what the pages name is there.

A section's blocks run one after the other in an empty folder. They run as they stand, but for the
recipes: those are made small, with a tiny random model in the model's place.
"""

import ast
import re
import shlex
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests import docs_kit
from tests.train_kit import letter_protocol, make_model
from torl import recipe_file
from torl.cli import app
from torl.config import Recipe
from torl.insight.catalog import lookup
from torl.run import Run
from torl.tasks import KINDS

ROOT = Path(__file__).parent.parent
README = "../README"
PAGES = (
    *(README, "quickstart", "concepts", "recipes", "algorithms", "rewards", "extend", "metrics", "paper"),
    "sandbox",
)
COMMANDS = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
GROUPS = {group.name or group.typer_instance.info.name for group in app.registered_groups}  # type: ignore[union-attr]


@dataclass(frozen=True)
class Block:
    """A fenced block. ``name`` is the file that it stands for, where its fence says one."""

    page: str
    section: str
    language: str
    name: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Commands of a shell block, without their comments."""
        if self.language != "sh":
            return []
        return [" ".join(line.split("  #")[0].split()) for line in self.text.splitlines()]


@cache
def text_of(page: str) -> str:
    return (docs_kit.DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    section, opening = "", None
    body: list[str] = []
    for line in text_of(page).splitlines():
        fence = re.match(r"(`{3,})(\w*) ?(\S*)$", line)
        if opening is None and fence:
            opening, body = fence, []
        elif opening is not None and line == opening[1]:
            yield Block(page, section, opening[2], opening[3], "\n".join(body) + "\n")
            opening = None
        elif opening is not None:
            body.append(line)
        elif line.startswith("## "):
            section = line.removeprefix("## ")
    assert opening is None, f"{page}: {opening} is never closed"


ALL = [block for page in PAGES for block in blocks(page)]
TORL_LINES = [line for block in ALL for line in block.lines if re.match(r"(PYTHONPATH=\. )?torl ", line)]
RUNNABLE = {
    (b.page, b.section): [c for c in ALL if (c.page, c.section) == (b.page, b.section)]
    for b in ALL
    if b.name or b.language == "python" or any(line in TORL_LINES for line in b.lines)
}


def spans(page: str) -> list[str]:
    """What stands in code spans, outside of blocks."""
    prose = re.sub(r"^(`{3,}).*?^\1$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(found[1].split()) for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", prose)]


# What the code blocks need


SMALL: dict[str, Any] = {
    "steps": 1,
    "prompts_per_step": 2,
    "group_size": 2,
    "device": "cpu",
    "dtype": "float32",
    "tasks.size": 16,
    "tasks.test_limit": 2,
    "rollout.max_completion_tokens": 20,
    "rollout.max_observation_tokens": 8,
    "sampler.max_sequences": 8,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


def make_small(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recipe, as it is read: small, with the tiny model. Overrides come later and count."""
    original = recipe_file.read_text

    def read(name_or_path: str) -> str:
        data = yaml.safe_load(original(name_or_path))
        for key, value in {**SMALL, "model": model}.items():
            recipe_file.put(data, key, value)
        return yaml.safe_dump(data)

    monkeypatch.setattr(recipe_file, "read_text", read)
    monkeypatch.setattr(sys.modules["torl.train"], "write_report", lambda _: None)


@pytest.fixture(scope="module")
def finished(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages call RUN."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        make_small(model, patch)
        result = CliRunner().invoke(app, ["quickstart", "--run", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def place(model: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a finished run RUN, an unfinished one, and task files; afterwards all that a
    block registered or replaced is as it was."""
    make_small(model, monkeypatch)
    shutil.copytree(finished, tmp_path / "RUN")
    shutil.copytree(finished, tmp_path / "runs" / "unfinished")
    (tmp_path / "runs" / "unfinished" / "summary.json").unlink()
    for name, factor in (("mawps", 2), ("svamp", 3)):
        rows = [f'{{"problem": "{factor} times {n}?", "answer": "{factor * n}"}}\n' for n in range(140)]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    kinds, modules = dict(KINDS), set(sys.modules)
    yield tmp_path
    KINDS.clear()
    KINDS.update(kinds)
    for name in set(sys.modules) - modules:
        if name.startswith("my_"):
            del sys.modules[name]


def command(line: str) -> Result:
    """A command as it stands, but of few steps."""
    arguments = [re.sub(r"^steps=\d+$", "steps=2", a) for a in shlex.split(line)]
    return CliRunner().invoke(app, arguments[1:], input="What is 2 + 2?\nexit\n")


def play(block: Block, place: Path, base: list[str]) -> None:
    """Runs a block. A script finds modules beside it; the command ``torl`` does not."""
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]
    if block.name:
        (place / block.name).write_text(block.text)
    elif block.language == "python":
        sys.path[:] = [str(place), *base]
        exec(compile(block.text, f"{block.page}.md: {block.section}", "exec"), {"__name__": "__main__"})
    for line in block.lines:
        found_here = line.startswith("PYTHONPATH=. ")
        sys.path[:] = [str(place), *base] if found_here else base
        if line in TORL_LINES and line not in ("torl quickstart", "torl doctor"):
            result = command(line.removeprefix("PYTHONPATH=. "))
            assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("page", "section"), RUNNABLE)
def test_code_runs(page: str, section: str, place: Path) -> None:
    base = [entry for entry in sys.path if entry]
    with letter_protocol() if section == "A tool" else nullcontext():
        for block in RUNNABLE[page, section]:
            play(block, place, base)
    if section == "A tool":  # it was really called, also from training
        (run,) = (Run.open(path) for path in (place / "runs").glob("quickstart-*"))
        assert run.metrics()[-1]["rollout/calls"] > 0


# What the pages say


@pytest.mark.parametrize("path", docs_kit.pages(), ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert docs_kit.current(text) == text, (
        f"docs/{path.name} is out of date: run `make docs`, and commit it"
    )


def test_every_page_is_tested_and_begins_with_what_it_is_for() -> None:
    ours = {"design", "log", "results"}  # written by hand, and tested by nothing here
    assert {path.stem for path in docs_kit.DOCS.glob("*.md")} - ours == set(PAGES) - {README}
    for page in set(PAGES) - {README}:
        title, empty, first = text_of(page).splitlines()[:3]
        assert title.startswith("# ")
        assert (empty, first[:1].isupper()) == ("", True)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_are_there(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text_of(page)):
        if target.startswith("https://"):
            continue  # a paper
        here = docs_kit.DOCS / f"{page}.md"
        path = here.parent / target if target else here
        assert path.is_file(), target
        text = path.read_text(encoding="utf-8") if path.suffix == ".md" else ""  # not of a picture
        titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not anchor or anchor in slugs, (target, anchor)
    for name in spans(page):
        if re.match(r"(torl|tests|docs)/", name):
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str) -> None:
    commands = [line for block in blocks(page) for line in block.lines if line in TORL_LINES]
    commands += [name for name in spans(page) if name.startswith("torl ")]
    for line in commands:
        name, *rest = shlex.split(line.removeprefix("PYTHONPATH=. "))[1:]
        command = [name, rest.pop(0)] if name in GROUPS and rest else [name]
        assert name in COMMANDS | GROUPS, line
        shown = CliRunner().invoke(app, [*command, "--help"])
        assert shown.exit_code == 0, line
        help_text = shown.output
        for option in rest:
            assert not option.startswith("--") or f"{option} " in help_text, line


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    lines = [line for block in blocks(page) for line in block.lines] + spans(page)
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {line.split()[1] for line in lines if line.startswith("make ")} <= targets


def is_key(name: str) -> bool:
    return name in docs_kit.dotted_keys() | set(Recipe.model_fields) or name.startswith("rewards.")


@pytest.mark.parametrize("page", PAGES)
def test_keys_are_keys(page: str) -> None:
    """Overrides in commands, and in code spans ``key=value`` and ``section.key``."""
    lines = [line for block in blocks(page) for line in block.lines if line in TORL_LINES]
    words = [word for line in lines for word in shlex.split(line.removeprefix("PYTHONPATH=. "))]
    given = {word.partition("=")[0] for word in words if "=" in word}
    for name in spans(page):
        if found := re.fullmatch(r'"?([a-z_]+(\.\w+)*)=\S.*', name):
            given.add(found[1])
        elif name.partition(".")[0] in Recipe.model_fields and re.fullmatch(r"\w+\.\w+", name):
            given |= {name} if name not in ("recipe.yaml", "tasks.jsonl") else set()
    assert {name for name in given - {"key"} if not is_key(name)} == set()


@pytest.mark.parametrize("page", PAGES)
def test_metrics_are_metrics(page: str) -> None:
    sections = "rollout|reward|learner|loss|sampler|sandbox|tool|time|heldout"
    names = [name for name in spans(page) if re.fullmatch(rf"({sections})/[\w<>/]+", name)]
    assert [name for name in names if lookup(name) is None] == []


def test_quoted_errors_are_those_of_the_code() -> None:
    """The first column of "When something fails", and the files of a run's folder."""
    strings = [
        node.value
        for path in (ROOT / "torl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    table = text_of("quickstart").partition("## When something fails")[2]
    quoted = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(quoted) > 10
    assert [message for message in quoted if not any(message in string for string in strings)] == []


def test_the_files_of_a_run_are_there(finished: Path) -> None:
    table = text_of("quickstart").partition("## What lies in the run's folder")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 8
    made_here = {"report.html"}  # drawn in its own tests; here it would take longer than all the rest
    for name in names:
        assert name in made_here or (finished / name.replace("step-00030", "step-00001")).exists(), name


# The paper's page


def test_the_tests_that_prove_it_exist() -> None:
    cited = re.findall(r"`(test_\w+)::(test_\w+)`", text_of("paper"))
    assert len(cited) > 30
    missing = [
        f"{module}::{name}"
        for module, name in cited
        if f"def {name}(" not in (ROOT / "tests" / f"{module}.py").read_text(encoding="utf-8")
    ]
    assert missing == []


def test_every_fault_of_the_reference_has_its_row() -> None:
    numbers = re.findall(r"^\| (\d+) \|", text_of("paper"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 24))


# The picture


def test_the_picture_is_drawn_for_light_and_dark() -> None:
    picture = ET.parse(docs_kit.DOCS / "flow.svg").getroot()
    words = " ".join(picture.itertext())
    assert "prefers-color-scheme: dark" in words
    for word in ("tasks", "rollout", "reward", "advantage", "batch", "learner", "sampler", "tools"):
        assert word in words
    x, y, width, height = map(float, picture.attrib["viewBox"].split())
    for box in picture.iter("{http://www.w3.org/2000/svg}rect"):
        left, top = float(box.attrib["x"]), float(box.attrib["y"])
        assert x < left < left + float(box.attrib["width"]) < x + width
        assert y < top < top + float(box.attrib["height"]) < y + height
