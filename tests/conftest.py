"""Fixtures that several files share. What they need is imported when they are used."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.judge_kit import Server
    from torl.run import Run


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """See learner_kit.single_thread."""
    from tests.learner_kit import single_thread

    with single_thread():
        yield


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator["Callable[..., Server]"]:
    """See judge_kit.serving."""
    from tests.judge_kit import serving

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as start:
        yield start


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of train_kit's tiny model."""
    from tests.train_kit import make_model

    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where train_kit's recipes put their prompt."""
    return tmp_path_factory.mktemp("template") / "plain.txt"


@pytest.fixture(scope="session")
def finished(model: str, template: Path, tmp_path_factory: pytest.TempPathFactory) -> "Run":
    """A run of train_kit that nothing disturbed."""
    from tests.train_kit import go, make_recipe

    recipe = make_recipe(model, template, eval={"every": 3})
    return go(recipe, tmp_path_factory.mktemp("finished") / "run", report=True)
