"""``torl sandbox``: run, bench, and how a recipe's sandbox is said."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torl.cli import app
from torl.config import load_recipe
from torl.errors import UserError
from torl.sandbox import bench


def torl(*words: str, stdin: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["sandbox", *words], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_run_prints_the_result_as_json(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("print('é')\n1 + 1")
    code, out, _ = torl("run", str(file))
    result = json.loads(out)
    assert (code, result["status"], result["stdout"], result["value"]) == (0, "ok", "é\n", "2")
    assert result["tier"] in "ABCD"
    _, out, _ = torl("run", "-", "--cpu-s", "0.3", stdin="while True: pass")
    assert json.loads(out)["status"] == "timeout_cpu"
    _, out, _ = torl("run", "-", "--tier", "unsafe", stdin="1")
    assert json.loads(out)["tier"] == "unsafe"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["run", "-", "--tier", "E"], "--tier=E: the choices are auto, A, B, C, D, unsafe"),
        (["run", "-", "--cpu-s", "0"], "Limits.cpu_s=0.0 must be positive"),
        (["run", "-", "--python", "/no/python"], "sandbox.python=/no/python does not run"),
        (["bench", "--in-flight", "none"], "--in-flight=none: numbers from 1 on"),
        (["bench", "--tier", "E"], "the choices are A, B, C, D, fork, fresh"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], said: str) -> None:
    code, _, err = torl(*words)
    assert code == 2
    assert said in err


def test_bench_measures_tiers_beside_fresh_interpreters() -> None:
    code, out, _ = torl("bench", "--json", "--seconds", "0.3", "--in-flight", "1,2", "--tier", "fork,fresh")
    rows: list[dict[str, Any]] = json.loads(out)
    assert code == 0
    keys = {"tier", "snippet", "in_flight", "p50_ms", "p99_ms", "calls_per_s"}
    assert all(set(row) == keys for row in rows)
    assert {(r["tier"], r["snippet"], r["in_flight"]) for r in rows} == {
        (tier, snippet, n)
        for tier in ("fork", "fresh")
        for snippet in ("trivial", "numpy", "sympy")
        for n in (1, 2)
    }
    assert all(0 < r["p50_ms"] <= r["p99_ms"] and r["calls_per_s"] > 0 for r in rows)
    speed = {(r["tier"], r["snippet"]): r["p50_ms"] for r in rows if r["in_flight"] == 1}
    assert speed["fork", "sympy"] < speed["fresh", "sympy"] / 3  # 12 times on an idle machine


def test_a_snippet_that_prints_something_else_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.EXPECTED, "trivial", "3")

    async def main() -> None:
        async for _ in bench.measure(seconds=0.1, in_flight=[1], tiers=["fresh"]):
            pass

    with pytest.raises(UserError, match="printed '2'"):
        asyncio.run(main())


def test_the_sizing_hint() -> None:
    rows = [bench.Row("A", "sympy", n, 10.0, 20.0, 50.0 * n) for n in (1, 2)]
    text = bench.sizing(rows, batch=100, calls=2, step_s=10)
    assert "200 calls a step: 2.0 s with 2 slots" in text
    assert "20% of a step of 10 s" in text
    assert bench.sizing([], batch=1, calls=1, step_s=1) == ""


def test_unsafe_is_short_for_its_tier() -> None:
    assert load_recipe("quickstart", ["sandbox=unsafe"]).sandbox.tier == "unsafe"
    assert load_recipe("quickstart").sandbox.tier == "auto"
    with pytest.raises(UserError, match=r"sandbox.tier"):
        load_recipe("quickstart", ["sandbox=E"])
    with pytest.raises(UserError, match="state=session needs a sandbox on this machine"):
        load_recipe("quickstart", ["sandbox.state=session", "sandbox.urls=[http://one]"])
