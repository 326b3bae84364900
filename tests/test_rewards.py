"""Rewards: the final answer, the verifier, the built-in functions, the judge."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from golden_answers import GOLDEN, Row
from reward_kit import judged, trajectory, with_judge

from torl.config import Correctness
from torl.errors import UserError, VerifierFault, WorldFault
from torl.rewards import Judge
from torl.rewards.answers import final_answer, last_box
from torl.rewards.builtin import Overlong, executability
from torl.rewards.normalise import normalise
from torl.rewards.plain import decide_plain
from torl.rewards.process import WorkerProcess
from torl.rewards.verifier import Verifier
from torl.types import Task, ToolResult, Trajectory

TOWER = "9^{9^{9^{9}}}"


CALL = "```python\nprint(6 * 7)\n```\n```output"


# --- the final answer -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\fbox{7}", "7"),
        (r"\boxed {8}", "8"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{ 5 }", "5"),
        ("\\boxed{\n5\n}", "5"),
        (r"\boxed{}", None),
        (r"\boxed{1} \boxed{ }", None),
        (r"\boxed{42", None),
        (r"\boxed{1} then \boxed{4", "1"),
        (r"\boxed{ \frac{1}{2 then \boxed{3}", "3"),
        ("no box", None),
        ("", None),
        (r"\boxed", None),
        (r"\boxed{a\\}", r"a\\"),
    ],
)
def test_last_box(text: str, expected: str | None) -> None:
    assert final_answer(trajectory(text)) == expected


def test_box_within_box_belongs_to_the_outer_one() -> None:
    assert last_box(r"\boxed{1 + \boxed{2}}") == r"1 + \boxed{2}"


@pytest.mark.parametrize(
    "turns",
    [
        ["```python\nprint('\\boxed{42}')\n```"],  # in code
        ["```output\n\\boxed{42}\n```\n"],  # in an output block that it invented
        ["```\n\\boxed{42}\n```\nbye"],
        [(CALL, "\\boxed{42}"), "That is it."],  # printed by the tool
        [("```python\nprint(r'\\boxed{42}')\n```\n```output", r"\boxed{42}"), ""],
        [(r"It is \boxed{4", ""), "2}"],  # across turns
        ["It is \\boxed{4\n```python\n1\n```\n2}"],  # across a code block
        ["```python\nprint(r'\\boxed{42}')"],  # in code that was cut off
        [],
    ],
)
def test_a_box_that_is_not_prose_is_no_answer(turns: list[Any]) -> None:
    assert final_answer(trajectory(*turns)) is None


def test_a_box_in_code_or_output_does_not_override_the_answer() -> None:
    texts = (
        (r"It is \boxed{1}." + "\n" + CALL, r"\boxed{2}"),
        "```output\n\\boxed{3}\n```\n```python\nr'\\boxed{4}'\n```",
    )
    assert final_answer(trajectory(*texts)) == "1"


def test_answer_in_the_last_turn_wins() -> None:
    assert final_answer(trajectory((r"Guess: \boxed{1}" + "\n" + CALL, "42"), r"So \boxed{42}")) == "42"


# --- the verifier -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    made = Verifier(workers=1, timeout_s=10.0)
    yield made
    asyncio.run(made.close())


def check(verifier: Verifier, *pairs: tuple[str, str]) -> list[bool]:
    async def all_of_them() -> list[bool]:
        return [await verifier.check(*pair) for pair in pairs]

    return asyncio.run(all_of_them())


def wrong_rows(verdicts: list[bool], rows: list[Row]) -> list[Row]:
    return [row for row, verdict in zip(rows, verdicts, strict=True) if verdict != row[2]]


def test_golden_set(verifier: Verifier) -> None:
    assert len(GOLDEN) >= 120
    verdicts = check(verifier, *[row[:2] for row in GOLDEN])
    assert wrong_rows(verdicts, GOLDEN) == []


def test_golden_set_the_other_way_round(verifier: Verifier) -> None:
    verdicts = check(verifier, *[(reference, answer) for answer, reference, _ in GOLDEN])
    assert wrong_rows(verdicts, GOLDEN) == []


def test_same_verdicts_in_a_thread_and_in_a_subprocess(verifier: Verifier) -> None:
    rows = GOLDEN[::9]
    pairs = [row[:2] for row in rows]
    from_thread: list[bool] = []
    thread = threading.Thread(target=lambda: from_thread.extend(check(verifier, *pairs)))
    thread.start()
    thread.join()
    script = (
        "import asyncio, json, sys\n"
        "from torl.rewards.verifier import Verifier\n"
        "async def main(pairs):\n"
        "    verifier = Verifier(1, 10.0)\n"
        "    print(json.dumps([await verifier.check(*pair) for pair in pairs]))\n"
        "    await verifier.close()\n"
        "asyncio.run(main(json.load(sys.stdin)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(pairs), capture_output=True, text=True, check=True
    )
    assert check(verifier, *pairs) == from_thread == json.loads(done.stdout)
    assert wrong_rows(from_thread, rows) == []


def test_the_worker_loads_neither_torch_nor_transformers() -> None:
    script = (
        "import sys, torl.rewards.worker, torl.rewards.equality\n"
        "print({'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_plain_pairs_start_no_process_and_cost_microseconds() -> None:
    verifier = Verifier(workers=1)
    pairs = [("372", "372"), ("372.0", "372"), (r"\frac{1}{2}", "0.5"), ("371", "372"), ("C", r"\text{C}")]
    started = time.perf_counter()
    for _ in range(200):
        for answer, reference in pairs:
            assert decide_plain(normalise(answer), normalise(reference)) is not None
    assert (time.perf_counter() - started) / (200 * len(pairs)) < 500e-6  # about 20 us
    assert check(verifier, *pairs) == [True, True, True, False, True]
    assert verifier._processes[0]._process is None
    asyncio.run(verifier.close())


def test_very_long_answers_are_wrong_without_a_check() -> None:
    verifier = Verifier(workers=1)
    digits = "7" * 100_000
    assert check(verifier, (digits, "7"), (digits, digits), ("x+" * 600 + "x", "601x")) == [
        False,
        True,
        False,
    ]
    assert verifier._processes[0]._process is None
    asyncio.run(verifier.close())


@pytest.mark.parametrize(
    "text",
    [
        "{",
        r"\frac{",
        r"\frac",
        r"\sqrt[",
        "1,",
        "1 000 ",
        "a ",
        " ",
        r"\text{",
        r"\left(",
        "$",
        r"\\",
        "9",
        "(",
        "5%",
    ],
)
def test_no_string_makes_the_cheap_part_slow(text: str) -> None:
    for long in (text * (1000 // len(text)), "5 " + text * (990 // len(text)) + "!"):
        started = time.perf_counter()
        decide_plain(normalise(long), normalise("5x"))
        assert time.perf_counter() - started < 0.25


def test_hanging_checks_leave_the_good_ones_decided() -> None:
    async def run() -> list[Any]:
        verifier = Verifier(workers=2, timeout_s=0.5)
        hanging = [verifier.check(f"{TOWER}+{i}", "3") for i in range(16)]
        good = [verifier.check(f"x+{i}", f"{i}+x") for i in range(100)]
        try:
            return await asyncio.gather(*hanging, *good, return_exceptions=True)
        finally:
            await verifier.close()

    results = asyncio.run(run())
    assert all(isinstance(result, VerifierFault) for result in results[:16])
    assert results[16:] == [True] * 100


PATHOLOGICAL = [
    TOWER,
    r"\log(\log(\log(10^{10^{10^{10}}})))",
    "(" * 300 + "5" + ")" * 299 + "+1)",
    "9" * 990,
    "{" * 500,
]
MORE_PATHOLOGICAL = [
    "((((10!)!)!)!)",
    r"\log_{2}\log_{2}2^{2^{2^{2^{2^{2}}}}}",
    "2^{10^{9}}",
    r"\prod_{n=1}^{10^9} n",
    r"\binom{10^{9}}{5\cdot 10^{8}}",
    "(x+y+z)^{300}",
    "(x+1)^{5000}",
    r"\sin(10^{10^{6}})",
    "-" * 901 + "5",
    "x+" * 400 + "x",
    "a" * 900,
]


@pytest.mark.slow
@pytest.mark.parametrize("answer", MORE_PATHOLOGICAL)
def test_more_pathological_answers(answer: str) -> None:
    test_pathological_answers_are_wrong_or_undecided_within_the_limit(answer)


@pytest.mark.parametrize("answer", PATHOLOGICAL)
def test_pathological_answers_are_wrong_or_undecided_within_the_limit(answer: str) -> None:
    process = WorkerProcess(memory_mb=400)
    process._await_ready()
    started = time.perf_counter()
    verdict = decide_plain(normalise(answer), "5")
    try:
        verdict = process.check(answer, "5", timeout_s=0.3) if verdict is None else verdict
    except VerifierFault:
        verdict = False
    finally:
        seconds = time.perf_counter() - started
        process.kill()
        process.release()
    assert verdict is False
    assert seconds < 0.3 + 3.0  # the machine may be busy


def test_exhausted_memory_is_undecided_and_the_worker_is_replaced() -> None:
    verifier = Verifier(workers=1, timeout_s=30.0, memory_mb=300)
    with pytest.raises(VerifierFault, match=r"memory|died"):
        check(verifier, (r"\log_{2}\log_{2}\log_{2}2^{2^{2^{2^{2^{2}}}}}", "5"))
    assert check(verifier, ("x+1", "1+x")) == [True]
    asyncio.run(verifier.close())


def test_a_worker_that_dies_is_a_fault_and_is_replaced() -> None:
    verifier = Verifier(workers=1, timeout_s=10.0)
    assert check(verifier, ("x+1", "1+x")) == [True]
    worker = verifier._processes[0]._process
    assert worker is not None
    worker.kill()
    with pytest.raises(VerifierFault, match="x\\+2"):
        check(verifier, ("x+2", "2+x"))
    assert check(verifier, ("x+2", "2+x")) == [True]
    asyncio.run(verifier.close())


def test_a_worker_that_cannot_start_is_a_fault_with_its_last_words() -> None:
    verifier = Verifier(workers=1, memory_mb=20)  # not enough to load sympy
    with pytest.raises(VerifierFault, match="the worker died: exit status"):
        check(verifier, ("x+1", "1+x"))
    asyncio.run(verifier.close())


def test_closing_ends_a_running_check() -> None:
    async def run() -> BaseException:
        verifier = Verifier(workers=1, timeout_s=60.0)
        await verifier.check("x+1", "1+x")
        running = asyncio.create_task(verifier.check(TOWER, "5"))
        await asyncio.sleep(0.2)
        await verifier.close()
        (result,) = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(result, BaseException)
        return result

    started = time.perf_counter()
    assert isinstance(asyncio.run(run()), VerifierFault)
    assert time.perf_counter() - started < 20


def test_an_answer_is_never_run_as_python(verifier: Verifier, tmp_path: Any) -> None:
    target = tmp_path / "written"
    code = f"__import__('pathlib').Path('{target}').touch()"
    for answer in (code, rf"\text{{{code}}}", rf"\{{{code}, 1\}}", f"x={code}"):
        check(verifier, (answer, "x+1"), (answer, r"\{1,x\}"))
    assert not target.exists()


# --- the built-in functions -------------------------------------------------------------

OK, ERROR = ToolResult("42"), ToolResult("NameError: x", status="error")
TIMEOUT = ToolResult("timed out", status="timeout")
NEVER_RAN = ToolResult("no calls left", status="no_calls_left", executed=False)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], 0.0),  # no code: the reference code punished this
        ([OK], 0.0),
        ([ERROR], -0.5),
        ([TIMEOUT], -0.5),
        ([ERROR, ERROR], -0.5),
        ([ERROR, OK], 0.0),  # repaired
        ([OK, ERROR], 0.0),
        ([NEVER_RAN], 0.0),
        ([ERROR, NEVER_RAN], -0.5),
        ([OK, NEVER_RAN], 0.0),
    ],
)
def test_executability(results: list[ToolResult], expected: float) -> None:
    judged = trajectory(*[(CALL, result) for result in results], r"\boxed{42}")
    assert executability(judged, judged.task) == expected


# --- the judge --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reward", "correct", "answer"),
    [
        (r"\boxed{42}", 1.0, True, "42"),
        (r"\boxed{42.0}", 1.0, True, "42.0"),
        (r"\boxed{41}", -1.0, False, "41"),
        ("It is 42.", -1.0, False, None),
        ("", -1.0, False, None),
    ],
)
def test_correctness(text: str, reward: float, correct: bool, answer: str | None) -> None:
    made = judged(trajectory(text))
    assert (made.reward, made.correct, made.answer) == (reward, correct, answer)
    assert made.reward_parts == {"correctness": reward}


def test_the_tool_prints_the_box_and_the_model_says_nothing() -> None:
    made = judged(trajectory((CALL, r"\boxed{42}"), ""))
    assert (made.reward, made.correct, made.answer) == (-1.0, False, None)


def test_right_and_wrong_are_the_recipes() -> None:
    config = Correctness(right=1.0, wrong=0.0)
    assert judged(trajectory(r"\boxed{41}"), config=config).reward == 0.0
    assert judged(trajectory(r"\boxed{42}"), config=config).reward == 1.0


def length(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
    return float(len(trajectory.policy_text))


async def shape(trajectory: Trajectory, task: Task) -> dict[str, float]:  # noqa: ARG001
    return {"turns": len(trajectory.turns), "half": 0.5}


class Counter:
    async def __call__(self, trajectory: Trajectory, task: Task) -> int:  # noqa: ARG002
        return 3


def test_parts_are_unweighted_and_the_reward_is_their_weighted_sum() -> None:
    made = trajectory((CALL, ERROR), r"\boxed{42}")
    rewards = {"correctness": 2.0, "executability": 1.0, "length": 0.0, "shape": 0.1}
    judged(made, rewards, [length, shape, Counter()])
    assert made.reward_parts == {
        "correctness": 1.0,
        "executability": -0.5,
        "length": float(len(made.policy_text)),
        "shape/turns": 2.0,
        "shape/half": 0.5,
        "Counter": 3.0,
    }
    assert made.reward == pytest.approx(2.0 - 0.5 + 0.1 * 2.5 + 3.0)


def test_an_import_path_is_recorded_by_its_function_name() -> None:
    made = judged(trajectory("x"), {"rewards_for_tests:same": 1.0, "executability": 1.0})
    assert made.reward_parts == {"same": 2.0, "executability": 0.0}


@pytest.fixture(autouse=True)
def _module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "rewards_for_tests.py").write_text(
        "def same(trajectory, task):\n    return 2.0\n\ndef one(trajectory):\n    return 1.0\n"
    )
    (tmp_path / "broken_for_tests.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("rewards_for_tests", None)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("correctnes", "Did you mean correctness.*executability"),
        ("nothing like it", "Known: correctness, executability"),
        ("no_such_module:f", "importing no_such_module failed"),
        ("broken_for_tests:f", "ZeroDivisionError"),
        ("rewards_for_tests:sam", "Did you mean same"),
        ("rewards_for_tests:one", r"one must take \(trajectory, task\)"),
    ],
)
def test_a_reward_that_cannot_be_had_is_refused_at_once(key: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Judge({key: 1.0}, Correctness())


def test_names_that_clash_are_refused() -> None:
    def correctness(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
        return 0.0

    with pytest.raises(UserError, match="built-in"):
        Judge({"correctness": 1.0}, Correctness(), [correctness])
    with pytest.raises(UserError, match="one name"):
        Judge({"correctness": 1.0}, Correctness(), [length, length])


def returning(value: Any) -> Callable[..., Any]:
    def odd(trajectory: Trajectory, task: Task) -> Any:  # noqa: ARG001
        if isinstance(value, BaseException):
            raise value
        return value

    return odd


@pytest.mark.parametrize(
    "value",
    [
        None,
        float("nan"),
        float("inf"),
        "1.0",
        [1.0],
        1j,
        {"a": None},
        ValueError("no"),
        KeyError("no"),
        StopIteration("no"),
        SystemExit(1),
        WorldFault("judge endpoint is down"),
    ],
)
def test_what_is_not_a_number_is_a_fault_and_never_a_reward(value: Any) -> None:
    made = trajectory(r"\boxed{42}")
    with pytest.raises(VerifierFault, match="odd on trajectory task#0"):
        judged(made, {"correctness": 1.0}, [returning(value)])
    assert made.reward is None


def test_a_reward_function_that_fails_on_a_tenth_leaves_the_rest_as_they_were() -> None:
    def flaky(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
        if trajectory.sample % 10 == 3:
            raise ConnectionError("lost")
        return float(trajectory.sample % 2)

    made = [trajectory("x", answer="") for _ in range(100)]
    for number, one in enumerate(made):
        one.sample = number

    async def judge_all(judge: Judge) -> list[Any]:
        return await asyncio.gather(*(judge.judge(one) for one in made), return_exceptions=True)

    results = with_judge(judge_all, {"flaky": 1.0}, [flaky])
    assert sum(isinstance(result, VerifierFault) for result in results) == 10
    kept = [one.reward for one in made if one.reward is not None]
    assert kept == [float(n % 2) for n in range(100) if n % 10 != 3]


def test_slow_sync_functions_run_side_by_side() -> None:
    def slow(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
        time.sleep(0.3)
        return 1.0

    made = [trajectory("x", answer="") for _ in range(16)]

    async def judge_all(judge: Judge) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(judge.judge(one) for one in made))
        return time.perf_counter() - started

    assert with_judge(judge_all, {"slow": 1.0}, [slow]) < 2.0
    assert [one.reward for one in made] == [1.0] * 16


def test_a_reward_function_that_never_returns_is_a_fault() -> None:
    def forever(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
        threading.Event().wait()
        return 1.0

    with pytest.raises(VerifierFault, match=r"forever on trajectory task#0: no result within 0\.2 s"):
        judged(trajectory("x"), {"correctness": 1.0}, [forever], timeout_s=0.2)


def test_an_undecided_answer_is_a_fault_where_correctness_is_rewarded() -> None:
    made = trajectory(rf"\boxed{{{TOWER}}}")
    with pytest.raises(VerifierFault, match="correctness on trajectory task#0"):
        judged(made, config=Correctness(timeout_s=0.3))
    assert (made.reward, made.correct) == (None, None)


def test_correct_is_measured_where_it_is_no_reward() -> None:
    assert judged(trajectory(r"\boxed{42}"), {"executability": 1.0}).correct is True
    assert judged(trajectory(r"\boxed{41}"), {"correctness": 0.0}).correct is False
    made = judged(trajectory(r"\boxed{42}", answer=""), {"executability": 1.0})
    assert (made.correct, made.answer) == (None, "42")
    made = judged(
        trajectory(rf"\boxed{{{TOWER}}}"), {"executability": 1.0}, config=Correctness(timeout_s=0.3)
    )
    assert (made.reward, made.correct) == (0.0, None)


def test_correctness_needs_an_answer_in_the_task() -> None:
    with pytest.raises(UserError, match="task task has no answer"):
        judged(trajectory("x", answer=" "))


def test_correctness_is_decided_before_the_others_ask_for_it() -> None:
    """Wherever it stands in the recipe, and where it is not listed."""

    def seen(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
        return {None: 0.0, False: -1.0, True: 1.0}[trajectory.correct]

    for rewards in ({"seen": 1.0, "correctness": 1.0}, {"seen": 1.0}):
        made = judged(trajectory(r"\boxed{42}"), rewards, [seen])
        assert (made.reward_parts["seen"], list(made.reward_parts)) == (1.0, list(rewards))


def test_what_the_user_gave_wrong_ends_the_run() -> None:
    def strict(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
        raise UserError("this task has no price")

    with pytest.raises(UserError, match="no price"):
        judged(trajectory("x"), {"strict": 1.0}, [strict])


def test_names_of_built_in_rewards_are_taken_whether_listed_or_not() -> None:
    def judge(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
        return 0.0

    with pytest.raises(UserError, match="'judge' is a built-in reward"):
        Judge({"correctness": 1.0}, Correctness(), [judge])


def test_judging_again_starts_afresh() -> None:
    made = trajectory(r"\boxed{42}")

    async def twice(judge: Judge) -> None:
        await judge.judge(made)
        made.turns[-1].text = r"\boxed{1}"
        await judge.judge(made)

    with_judge(twice)
    assert (made.reward, made.correct, made.answer) == (-1.0, False, "1")


@pytest.mark.parametrize(
    ("ids", "reward"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (120, -1.0)]
)
def test_overlong_falls_through_its_buffer(ids: int, reward: float) -> None:
    made = trajectory("x")
    made.ids = [0] * ids
    assert Overlong(0.2, 100)(made, made.task) == pytest.approx(reward)
    parts = judged(made, {"overlong": 0.5}, overlong=Overlong(0.2, 100))
    assert (parts.reward_parts["overlong"], parts.reward) == pytest.approx((reward, reward / 2))
