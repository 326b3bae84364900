"""Tasks: files load or say why not, held-out problems never train, the stream repeats."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torl.config import Recipe
from torl.errors import UserError
from torl.tasks import TaskStream, load_file, load_source, load_tasks
from torl.tasks.files import load_hub
from torl.tasks.load import source_name
from torl.tasks.rows import final_answer, last_boxed
from torl.types import Task

BENCHMARKS = Path(__file__).parents[2] / "shared" / "benchmarks"

# ---- Files -----------------------------------------------------------------------------------

PAPER_ROW = {
    "data_source": "aime24",
    "prompt": [
        {"role": "system", "content": "Reason step by step."},
        {"role": "user", "content": "What is 2 + 3?"},
    ],
    "ability": "other",
    "reward_model": {"ground_truth": "5", "stype": "rule"},
    "extra_info": {"id": "x", "split": "test"},
}

FORMATS: list[tuple[str, dict[str, Any], str, str]] = [
    ("plain", {"problem": "2 + 3?", "answer": "5"}, "2 + 3?", "5"),
    ("prompt", {"prompt": "2 + 3?", "solution": "Clearly $2+3=\\boxed{5}$."}, "2 + 3?", "5"),
    ("number", {"question": "2 + 3?", "answer": 5}, "2 + 3?", "5"),
    ("zero", {"question": "2 - 2?", "answer": 0}, "2 - 2?", "0"),
    ("aime24", {"problem": "p?", "solution": "long", "answer": "045", "question": "p?"}, "p?", "45"),
    ("amc23", {"id": 0, "problem": "p?", "answer": 27.0, "question": "p?"}, "p?", "27"),
    ("gsm8k", {"question": "q?", "answer": "a <<1+2=3>>3\n#### 1,203", "idx": 0}, "q?", "1203"),
    ("mawps", {"input": "How many ?", "target": 43.0, "type": "singleeq", "idx": 0}, "How many ?", "43"),
    ("mawps", {"input": "How many ?", "target": 1.84, "idx": 1}, "How many ?", "1.84"),
    ("svamp", {"Body": "There are 87 oranges", "Question": "How many?", "Answer": 145.0},
     "There are 87 oranges. How many?", "145"),
    ("minerva", {"problem": "p?", "solution": "So \\boxed{x} and \\boxed{\\frac{1}{2}} m", "type": "t"},
     "p?", "\\frac{1}{2}"),
    ("olympiadbench", {"context": None, "question": "q?", "solution": ["s"], "final_answer": ["$k=1$"]},
     "q?", "k=1"),
    ("torl", PAPER_ROW, "What is 2 + 3?", "5"),
]  # fmt: skip


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "row", "problem", "answer"), FORMATS)
def test_columns_are_recognised(
    tmp_path: Path, name: str, row: dict[str, Any], problem: str, answer: str
) -> None:
    [task] = load_file(write(tmp_path / f"{name}.jsonl", [row]))
    assert (task.problem, task.answer, task.id) == (problem, answer, f"{name}/0")


def test_json_parquet_and_jsonl_give_the_same_tasks(tmp_path: Path) -> None:
    rows = [PAPER_ROW, PAPER_ROW | {"data_source": "math"}]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    write(tmp_path / "t.jsonl", rows)
    tasks = load_file(tmp_path / "t.jsonl")
    assert tasks == load_file(tmp_path / "t.json") == load_file(str(tmp_path / "t.parquet"))
    assert [t.kind for t in tasks] == ["aime24", "math"]
    assert tasks[0].meta["extra_info"] == {"id": "x", "split": "test"}


def test_jsonl_tolerates_empty_lines_marks_and_odd_separators(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('\ufeff{"problem": "a\u2028b?", "answer": 1}\r\n\n{"problem": "c?", "answer": 2}')
    assert [t.problem for t in load_file(path)] == ["a\u2028b?", "c?"]


GOOD = '{"problem": "p?", "answer": "5"}\n'
BAD_FILES = [
    ("t.jsonl", GOOD + "{broken\n", r"t\.jsonl, line 2: not valid JSON .*correct or delete it"),
    ("t.jsonl", GOOD + "\n[1]\n", r"t\.jsonl, line 3: expected an object .*got a list"),
    ("t.jsonl", GOOD + '{"problem": "p?", "answer": " "}\n', r"line 2: the answer \(answer\) is empty"),
    ("t.jsonl", GOOD + '{"problem": "p?", "answer": null}\n', r"line 2: the answer \(answer\) is empty"),
    ("t.jsonl", GOOD + '{"problem": "p?", "answer": NaN}\n', r"line 2: the answer \(answer\) is empty"),
    ("t.jsonl", GOOD + '{"problem": "p?", "answer": []}\n', r"line 2: the answer \(answer\) is empty"),
    ("t.jsonl", '{"problem": " ", "answer": 5}\n', r"line 1: the problem \(problem\) is empty"),
    ("t.jsonl", '{"prompt": [], "answer": 5}\n', r"line 1: the problem \(prompt\) is empty"),
    ("t.jsonl", '{"task": "p?", "answer": 5}\n', r"no column with the problem\. It has: task, answer; "
     r"recognised are: problem, question.*Rename the column that holds the problem to 'problem'"),
    ("t.jsonl", GOOD + '{"problem": "p?", "result": 5}\n', r"line 2: no column with the answer.*'answer'"),
    ("t.jsonl", "{}\n", r"line 1: .*It has: no columns"),
    ("t.jsonl", '{"problem": "p?", "reward_model": "5"}\n', r"reward_model\.ground_truth\) is empty"),
    ("t.jsonl", json.dumps({"problem": "p?", "solution": "word " * 20}), r"no final answer; put it"),
    ("t.jsonl", "", r"t\.jsonl holds no tasks"),
    ("t.json", "", r"t\.json holds no tasks"),
    ("t.json", "[]", r"t\.json holds no tasks"),
    ("t.json", '{"a": 1}', r"t\.json: a \.json task file is a list of objects, not an object"),
    ("t.json", '[{"problem": "p?", "answer": 1},\n 3]', r"t\.json, entry 2: expected an object .*a number"),
    ("t.json", "[{},\n{]", r"t\.json: not valid JSON \(.* at line 2\)"),
    ("t.parquet", "no", r"t\.parquet is not a readable Parquet file"),
    ("t.csv", "a,b", r"task files are \.jsonl, \.json, \.parquet, not \.csv"),
    ("tasks", "a,b", r"not without an extension"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD_FILES)
def test_bad_files_are_one_clear_error(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        load_file(tmp_path / name)


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    write(tmp_path / "mawps.jsonl", [{"problem": "p?", "answer": 1}])
    with pytest.raises(UserError, match=r"no task file .*did you mean mawps\.jsonl\?"):
        load_file(tmp_path / "maps.jsonl")
    with pytest.raises(UserError, match=r"task files there: mawps\.jsonl"):
        load_file(tmp_path / "zzzzzzzz.json")
    with pytest.raises(UserError, match="there is no folder"):
        load_file(tmp_path / "nowhere" / "t.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"problem": "\xe9"}')
    with pytest.raises(UserError, match="is not UTF-8 text"):
        load_file(tmp_path / "latin.jsonl")


@given(st.text(alphabet="ab{}\\", max_size=20))
def test_last_boxed_is_balanced(text: str) -> None:
    found = last_boxed("x \\boxed{1} y \\boxed{" + text + "} z")
    assert found is None or found.count("{") == found.count("}")
    assert last_boxed("no box") is None


def test_final_answer_of_other_cells() -> None:
    assert final_answer([1.0, "$y$"]) == "1, y"
    assert final_answer("$a$, $b$") == "$a$, $b$"
    assert final_answer("0") == "0"
    assert final_answer(0.5) == "0.5"


# ---- Data sets of the hub -------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import datasets

    folder = tmp_path_factory.mktemp("hub")
    rows = datasets.Dataset.from_list(
        [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(5)]
    )
    datasets.DatasetDict({"train": rows, "test": rows.select([4])}).save_to_disk(str(folder / "both"))
    rows.save_to_disk(str(folder / "one"))
    (folder / "files").mkdir()
    rows.to_parquet(str(folder / "files" / "train.parquet"))
    return folder


def test_a_saved_data_set_loads_by_split(saved: Path) -> None:
    assert len(load_hub(f"hf:{saved}/both")) == 5
    [task] = load_hub(f"hf:{saved}/both:test")
    assert (task.problem, task.answer, task.id) == ("4 + 1?", "5", "both/0")
    assert len(load_source(f"hf:{saved}/one", Recipe().tasks)) == 5


def test_the_hub_is_asked_by_name_config_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load(name: str, config: str | None, split: str) -> list[dict[str, str]]:
        asked.append((name, config, split))
        return [{"problem": "p?", "answer": "1"}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    tasks = [load_hub(s)[0].id for s in ("hf:openai/gsm8k/main:test", "hf:owner/name")]
    assert asked == [("openai/gsm8k", "main", "test"), ("owner/name", None, "train")]
    assert tasks == ["gsm8k/0", "name/0"]


def test_a_data_set_that_cannot_be_had_says_how_to_go_on(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(UserError, match=r"cannot load hf:owner/name: ConnectionError: no route.*download"):
        load_hub("hf:owner/name")
    with pytest.raises(UserError, match=r"cannot load .*both:dev: KeyError"):
        load_hub(f"hf:{saved}/both:dev")


# ---- The sets of a recipe ---------------------------------------------------------------------


def recipe(**tasks: Any) -> Recipe:
    return Recipe().override(**{f"tasks.{key}": value for key, value in tasks.items()})


def sums(path: Path, low: int, high: int) -> str:
    return str(write(path, [{"problem": f"{i} + 1?", "answer": i + 1} for i in range(low, high)]))


def ids(tasks: list[Task]) -> set[str]:
    return {t.id for t in tasks}


def test_builtin_sets_honour_the_recipe() -> None:
    sets = load_tasks(recipe(size=90, kinds=["gcd", "units"], difficulty=0.1, test_limit=20))
    assert len(sets.train) == 90
    assert list(sets.test) == ["builtin"]
    assert Counter(t.kind for t in sets.test["builtin"]) == {"gcd": 10, "units": 10}
    assert len(load_tasks(recipe(size=90, limit=31)).train) == 31
    assert load_tasks(recipe(size=9)).train != load_tasks(recipe(size=9, split_seed=1)).train


def test_one_file_is_split_and_a_second_measured(tmp_path: Path) -> None:
    mawps, svamp = sums(tmp_path / "mawps.jsonl", 0, 100), sums(tmp_path / "svamp.jsonl", 200, 250)
    changes = {"train": mawps, "test": [mawps, svamp], "holdout": 30, "test_limit": 20}
    sets = load_tasks(recipe(**changes))
    assert {name: len(tasks) for name, tasks in sets.test.items()} == {"mawps": 20, "svamp": 20}
    assert len(sets.train) == 70
    assert not ids(sets.train) & ids(sets.test["mawps"])
    assert sets == load_tasks(recipe(**changes))
    other = load_tasks(recipe(**changes, split_seed=1))
    assert ids(other.test["mawps"]) != ids(sets.test["mawps"])
    limited = load_tasks(recipe(**changes, limit=10))
    assert ids(limited.train) < ids(sets.train)
    assert limited.test == sets.test


def test_holdout_is_measured_even_when_test_does_not_name_the_file(tmp_path: Path) -> None:
    mawps, svamp = sums(tmp_path / "mawps.jsonl", 0, 100), sums(tmp_path / "svamp.jsonl", 200, 250)
    sets = load_tasks(recipe(train=mawps, test=svamp, holdout=30))
    assert {name: len(tasks) for name, tasks in sets.test.items()} == {"mawps": 30, "svamp": 50}


def test_held_out_problems_never_train(tmp_path: Path) -> None:
    train, test = sums(tmp_path / "a.jsonl", 0, 50), sums(tmp_path / "b.jsonl", 40, 60)
    spaced = Path(test).read_text().replace("45 + 1?", " 45  +1 ?")
    Path(test).write_text(spaced)
    sets = load_tasks(recipe(train=train, test=test, test_limit=1))
    assert (len(sets.train), sets.duplicates) == (40, 10)
    with pytest.raises(UserError, match=r"all 20 problems .* are held out"):
        load_tasks(recipe(train=test, test=sums(tmp_path / "c.jsonl", 40, 60)))


def test_impossible_splits_are_refused(tmp_path: Path) -> None:
    path = sums(tmp_path / "a.jsonl", 0, 10)
    with pytest.raises(UserError, match=r"Set tasks.holdout, e\.g\. tasks.holdout=128"):
        load_tasks(recipe(train=path, test=str(tmp_path / "." / "a.jsonl")))
    with pytest.raises(UserError, match=r"leaves nothing to train on: .* has 10 tasks"):
        load_tasks(recipe(train=path, test=path, holdout=10))
    with pytest.raises(UserError, match=r"set tasks\.holdout=0 and tasks.test=builtin"):
        load_tasks(recipe(holdout=5))


def test_names_of_test_sets_are_free(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    a, b = sums(tmp_path / "t.jsonl", 0, 3), sums(tmp_path / "x" / "t.jsonl", 5, 9)
    sets = load_tasks(recipe(size=30, test=[a, b, a, "builtin"]))
    assert list(sets.test) == ["t", "t-2", "builtin"]
    assert source_name("hf:owner/name:test") == "name"


# ---- The stream ---------------------------------------------------------------------------------


def many(n: int) -> list[Task]:
    return [Task(f"t/{i}", f"{i}?", str(i)) for i in range(n)]


@given(n=st.integers(1, 40), share=st.floats(0, 1), seed=st.integers(0, 9), epochs=st.integers(1, 6))
def test_the_stream_sees_each_task_once_an_epoch(n: int, share: float, seed: int, epochs: int) -> None:
    size = max(1, round(share * n))
    stream = TaskStream(many(n), size, seed)
    batches = [stream.batch(step) for step in range(math.ceil(n * epochs / size))]
    seen = [task.id for batch in batches for task in batch]
    assert all(set(seen[e * n : (e + 1) * n]) == {f"t/{i}" for i in range(n)} for e in range(epochs))
    assert all(len(ids(batch)) == size for batch in batches)
    last = len(batches) - 1
    assert TaskStream(many(n), size, seed).batch(last) == batches[last]  # a resumed run


def test_the_stream_shuffles_by_seed_and_epoch() -> None:
    stream = TaskStream(many(50), 50, 0)
    assert stream.batch(0) != stream.batch(1)
    assert stream.batch(0) != TaskStream(many(50), 50, 1).batch(0)
    assert TaskStream(many(50), 20, 0).epoch(5) == 2.0


def test_the_stream_refuses_more_prompts_than_tasks() -> None:
    with pytest.raises(UserError, match="prompts_per_step=12 is more than the 5 training tasks"):
        TaskStream(many(5), 12, 0)
    with pytest.raises(UserError, match="no training tasks"):
        TaskStream([], 1, 0)


# ---- The benchmarks, where this machine has them ------------------------------------------------

needs_benchmarks = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no shared benchmarks here")


@needs_benchmarks
@pytest.mark.parametrize(
    ("name", "n", "answers"),
    [
        ("aime24.jsonl", 30, {0: "204"}),
        ("amc23.jsonl", 40, {0: "27", 1: "36"}),
        ("gsm8k.jsonl", 1319, {0: "18", 1: "3"}),
        ("mawps.jsonl", 2065, {0: "43", 1: "26"}),
        ("minerva_math.jsonl", 272, {0: "1.6", 1: "4.5e33"}),
        ("olympiadbench.jsonl", 675, {0: "2"}),
        ("svamp.jsonl", 1000, {0: "145", 1: "19"}),
        ("torl_test.parquet", 374, {0: "204"}),
    ],
)
def test_the_benchmarks_load(name: str, n: int, answers: dict[int, str]) -> None:
    tasks = load_file(BENCHMARKS / name)
    assert len(tasks) == n
    assert {i: tasks[i].answer for i in answers} == answers


@needs_benchmarks
def test_the_trial_is_expressible() -> None:
    mawps, svamp = str(BENCHMARKS / "mawps.jsonl"), str(BENCHMARKS / "svamp.jsonl")
    sets = load_tasks(recipe(train=mawps, test=[mawps, svamp], holdout=128, test_limit=96))
    assert {name: len(tasks) for name, tasks in sets.test.items()} == {"mawps": 96, "svamp": 96}
    assert len(sets.train) + sets.duplicates == 2065 - 128
