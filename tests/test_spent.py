"""Where a step's time goes: counted once, for what holds the others up."""

import pytest

from torl.insight import spent
from torl.insight.profile import PARTS, profile
from torl.insight.spent import Spent


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(spent.time, "monotonic", lambda: now[0])
    return now


def test_time_counts_for_the_first_kind_that_goes_on(clock: list[float]) -> None:
    subject = Spent()
    clock[0] += 5  # nothing goes on
    with subject.on("tools"):
        clock[0] += 1  # the tool alone
        with subject.on("decode"), subject.on("reward"):
            clock[0] += 2  # decoding, whatever else there is
        with subject.on("tools"):
            clock[0] += 4  # two tools at once count once
    with subject.on("reward"):
        clock[0] += 8
    assert subject.take() == {"decode": 2, "prefill": 0, "tools": 5, "reward": 8}
    clock[0] += 1
    assert sum(subject.take().values()) == 0


def test_an_error_ends_what_went_on(clock: list[float]) -> None:
    subject = Spent()

    def fail() -> None:
        with subject.on("tools"):
            clock[0] += 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    clock[0] += 1
    assert subject.take()["tools"] == 1


def test_time_is_taken_while_something_goes_on(clock: list[float]) -> None:
    subject = Spent()
    with subject.on("decode"):
        clock[0] += 3
        assert subject.take()["decode"] == 3
        clock[0] += 2
    subject.move(0.5, "decode", "prefill")
    assert subject.take() == {"decode": 1.5, "prefill": 0.5, "tools": 0, "reward": 0}


def test_a_profile_is_the_mean_of_steps_and_leaves_nothing_out() -> None:
    rows = [
        {"step": 0, "time/step_s": 10.0, "time/decode_s": 4.0, "time/update_s": 5.0},
        {"step": 1, "time/step_s": 20.0, "time/decode_s": 6.0, "time/update_s": 9.0, "time/tools_s": 2.0},
        {"step": 2},
    ]
    found = profile(rows)
    assert set(found) == set(PARTS)
    assert found["decode"] == 5
    assert found["update"] == 7
    assert found["tools"] == 1
    assert found["other"] == 2
    assert sum(found.values()) == 15
    assert sum(profile([]).values()) == 0
