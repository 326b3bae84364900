"""``python -m benchmarks``: torl beside its peers, on the same work, in one run.

Peers get environments of their own under build/bench. Processes take turns, so that a machine that slows
down slows all; ratios are of medians. Writes benchmarks/results.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import arithmetic
from benchmarks.environments import Missing, run, say
from benchmarks.work import Decoding, Step
from torl.weights import resolve_model

MODEL = "smollm2-135m-instruct"
DECODE = {4: (1.5, 1.0), 32: (2.5, 1.0), 64: (3.0, 1.0), 128: (3.0, 1.0)}  # targets: transformers, vLLM
OTHERS = [Decoding(32, prompt=512), Decoding(8, prompt=1500, new=32), Decoding(64, prompt=16, new=128)]
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--smoke", action="store_true", help="within a minute: decoding beside transformers"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each process is run")
    parser.add_argument("--only", choices=SECTIONS, nargs="*", default=list(SECTIONS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    given = parser.parse_args()
    model = str(Path(resolve_model(MODEL)).resolve())
    if given.smoke:
        return smoke(model)
    rows: list[Row] = json.loads(given.out.read_text()) if given.out.exists() else []
    for name in given.only:
        for row in SECTIONS[name](model, given.rounds):
            rows = [old for old in rows if (old["name"], old["peer"]) != (row["name"], row["peer"])] + [row]
            show(row)
            given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def smoke(model: str) -> int:
    """Fails when decoding is not clearly faster than transformers' own."""
    work = Decoding(32, prompt=32, new=24)
    rows = list(decoding(model, 2, [work], ["transformers"], {}))
    show(rows[0])
    return 0 if rows[0]["ratio"] > 1.5 else 1


def decode(model: str, rounds: int) -> Iterator[Row]:
    """Decoding at rising concurrency, and three other shapes."""
    works = [Decoding(n) for n in DECODE] + OTHERS
    targets = {
        Decoding(n).name: dict(zip(("transformers", "vllm"), t, strict=True)) for n, t in DECODE.items()
    }
    yield from decoding(model, rounds, works, ["transformers", "vllm"], targets)


def decoding(
    model: str,
    rounds: int,
    works: Sequence[Decoding],
    peers: list[str],
    targets: dict[str, dict[str, float]],
) -> Iterator[Row]:
    given = {"model": model, "works": [asdict(work) for work in works]}
    rates: dict[str, list[list[float]]] = {}
    for number in range(rounds):
        for who in ["torl", *peers]:
            say(f"round {number + 1} of {rounds}: {who} decodes ...")
            try:
                found = run(who, "torl_decode" if who == "torl" else f"peers.{who}_decode", **given)
            except Missing as error:
                say(f"{who} is left out: {error}")
                continue
            for one, work in zip(found, works, strict=True):
                assert one["tokens"] == work.tokens, (who, one, work)
            rates.setdefault(who, []).append([one["tokens"] / one["seconds"] for one in found])
    for n, work in enumerate(works):
        for peer in peers:
            if peer in rates:
                ours, theirs = ([round_[n] for round_ in rates[who]] for who in ("torl", peer))
                target = targets.get(work.name, {}).get(peer)
                yield row(work.name, peer, ours, theirs, target, f"{work.tokens} tokens each", "tokens/s")


def step(model: str, rounds: int) -> Iterator[Row]:
    """A GRPO step beside TRL's, and beside its own arithmetic; memory."""
    work = Step()
    ours: list[float] = []
    one: Row = {}

    def torl() -> None:
        nonlocal one
        say("torl takes steps ...")
        (one,) = run(
            "torl", "torl_step", model=model, work=asdict(work), steps=rounds, calls=[0], pack_tokens=1536
        )
        assert one["generated"] == one["trained"] == work.tokens, one
        ours.extend(one["seconds"])

    torl()
    theirs: dict[bool, list[float]] = {}
    for mixed in (True, False):
        say(
            f"TRL takes steps ({'float32 weights, bfloat16 autocast' if mixed else 'bfloat16 weights'}) ..."
        )
        try:
            given = {"work": asdict(work), "steps": rounds, "micro": 8, "mixed": mixed}
            found = run("trl", "peers.trl_step", model=model, **given)
        except Missing as error:
            say(f"TRL is left out: {error}")
            continue
        assert found["tokens"] == work.tokens, found
        theirs[mixed] = found["seconds"]
    torl()
    done = f"{work.tokens} tokens generated and trained"
    kinds = {True: "TRL 1.16, float32 masters", False: "TRL 1.16, bfloat16 weights"}
    for mixed, seconds in theirs.items():
        yield row(work.name, kinds[mixed], ours, seconds, 8.0 if mixed else None, done, "s")
    machine = run("torl", "arithmetic", model=model)
    least = arithmetic.seconds(machine, one["prompt_tokens"], work.tokens)
    rate = f"{machine['rate'] / 1e9:.0f} GFLOP/s"
    yield row(f"{work.name}, against its arithmetic", rate, ours, [least], 2.5, done, "s", at_most=True)
    limit = 1.5 * one["state_bytes"] + 1.5 * 2**30
    yield row(
        "peak memory of that step",
        "the limit",
        [one["peak_bytes"]],
        [limit],
        1.0,
        done,
        "bytes",
        at_most=True,
    )


def calls(model: str, rounds: int) -> Iterator[Row]:
    """Steps with one and two tool calls a sample beside steps without."""
    say("torl takes steps with 0, 1 and 2 calls a sample ...")
    given = {"work": asdict(Step()), "steps": 2 * rounds, "calls": [0, 1, 2], "pack_tokens": 1536}
    without, *with_calls = run("torl", "torl_step", model=model, **given)
    for one, target in zip(with_calls, (1.10, 1.15), strict=True):
        assert one["trained"] == without["trained"], one
        assert one["called"] > 0.9, one
        name = f"step with C={one['calls']}, against C=0"
        done = f"{one['trained']} tokens trained, calls in {one['called']:.0%} of samples"
        yield row(name, "C=0", one["seconds"], without["seconds"], target, done, "s", at_most=True)


def groups(model: str, rounds: int) -> Iterator[Row]:
    """Ids that are computed for a prompt's group of 4, 16 and 64."""
    for size in (4, 16, 64):
        say(f"torl takes steps with groups of {size} ...")
        work = Step(prompts=1, group=size, new=16, words=86)
        given = {"work": asdict(work), "steps": rounds, "calls": [0], "pack_tokens": 4096}
        (one,) = run("torl", "torl_step", model=model, **given)
        prompt, new = one["prompt_tokens"], size * work.new
        name = f"ids computed, one prompt of {prompt}, group of {size}"
        done = f"{one['rows']['rollout']} in the rollout, {one['rows']['update']} in the update"
        once = [2 * (prompt + new)]
        yield row(
            name, "prompt once in each", [sum(one["rows"].values())], once, 1.02, done, "ids", at_most=True
        )


def context(model: str, rounds: int) -> Iterator[Row]:
    """A decoding pass as contexts grow, against the bytes that it must read."""
    lengths = [256, 1024, 4096]
    found = [run("torl", "torl_context", model=model, sequences=8, lengths=lengths) for _ in range(rounds)]
    for n, length in enumerate(lengths[1:], 1):
        grown = [one[n]["seconds"] / one[0]["seconds"] for one in found]
        read = found[0][n]["bytes"] / found[0][0]["bytes"]
        name = f"decoding pass of 8 sequences, {length} tokens against {lengths[0]}"
        yield row(
            name, "bytes read", grown, [read], 1.0, "weights and the caches' share", "times", at_most=True
        )


def quickstart(_: str, __: int) -> Iterator[Row]:
    """The whole of ``torl quickstart``."""
    say("the quickstart ...")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        torl = str(Path(sys.executable).with_name("torl"))
        subprocess.run([torl, "quickstart"], cwd=folder, check=True, capture_output=True)
        took = time.perf_counter() - start
        (summary,) = Path(folder).glob("runs/*/summary.json")
        found = json.loads(summary.read_text())
    accuracy = [found["heldout"]["builtin"][when]["accuracy"] for when in ("before", "after")]
    done = f"held-out accuracy {accuracy[0]:.1%} to {accuracy[1]:.1%}"
    yield row("torl quickstart", "five minutes", [took], [300.0], 1.0, done, "s", at_most=True)


def row(  # noqa: PLR0917
    name: str,
    peer: str,
    torl: list[float],
    theirs: list[float],
    target: float | None,
    work: str,
    unit: str,
    at_most: bool = False,
) -> Row:
    """Medians and their ratio: how many times faster torl is; with ``at_most`` its share of the peer's."""
    ours, other = statistics.median(torl), statistics.median(theirs)
    faster = ours / other if unit == "tokens/s" or at_most else other / ours
    return {
        "name": name,
        "torl": ours,
        "peer": peer,
        "peer_value": other,
        "ratio": faster,
        "target": target,
        "at_most": at_most,
        "spread": [min(torl), max(torl), min(theirs), max(theirs)],
        "unit": unit,
        "work": work,
    }


def show(found: Row) -> None:
    sign = "<=" if found["at_most"] else ">="
    target = f" (target {sign} {found['target']:g})" if found["target"] is not None else ""
    print(
        f"{found['name']}: {found['torl']:.4g} {found['unit']}, {found['peer']} "
        f"{found['peer_value']:.4g}: "
        f"{found['ratio']:.2f}{target}; {found['work']}",
        flush=True,
    )


SECTIONS: dict[str, Callable[[str, int], Iterator[Row]]] = {
    "decode": decode,
    "step": step,
    "calls": calls,
    "groups": groups,
    "context": context,
    "quickstart": quickstart,
}

if __name__ == "__main__":
    sys.exit(main())
