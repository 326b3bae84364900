"""The zygotes of a broker: the strongest plan that works here, and enough of them."""

import time
from typing import TYPE_CHECKING, Any

from torl.sandbox import probes
from torl.sandbox.interpreter import Interpreter
from torl.sandbox.job import Job
from torl.sandbox.process import Child
from torl.sandbox.tiers import Plan
from torl.sandbox.types import Limits, Result
from torl.sandbox.zygotes import CALLS, Zygote, ZygoteDied

if TYPE_CHECKING:
    from torl.sandbox.broker import Broker

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
TEST_LIMITS = Limits(cpu_s=10.0, timeout_s=30.0)


class Pool:
    """Starts zygotes, tests each before it serves, and replaces those that end.

    ``waiting`` says why no worker can be had at the moment; empty when one can.
    """

    def __init__(
        self, python: Interpreter, plans: list[Plan], preload: list[str], *, size: int, broker: "Broker"
    ) -> None:
        self._python, self._plans, self._preload = python, plans, preload
        self._size, self._broker = size, broker
        self._zygotes: list[Zygote] = []
        self._settled = False  # whether a plan has been shown to work
        self._refusals: list[str] = []
        self._pause_s, self._paused_until = 0.0, 0.0
        self.waiting = ""

    @property
    def plan(self) -> Plan:
        return self._plans[0]

    def start(self) -> None:
        self._add()

    def ready(self) -> bool:
        return not self.waiting and any(zygote.state == "ready" for zygote in self._zygotes)

    def least_busy(self) -> Zygote:
        return min((z for z in self._zygotes if z.state == "ready"), key=lambda z: len(z.children))

    def tick(self, now: float) -> float:
        """Starts what is missing. Returns the seconds until it must be called again."""
        for zygote in self._zygotes:
            if zygote.state == "starting" and now > zygote.deadline:
                self._died(zygote, "it did not get ready")
                break
        if now < self._paused_until:
            return self._paused_until - now
        if self._settled:
            self.waiting = ""
            serving = [z for z in self._zygotes if z.state != "retired" and z.served < CALLS]
            if len(serving) < self._size:
                self._add()
        for zygote in [z for z in self._zygotes if z.state == "retired" and not z.children]:
            self._remove(zygote)
        return 1.0

    def ask(self, zygote: Zygote, request: dict[str, Any], child: Child) -> None:
        try:
            zygote.send(request, child)
        except ZygoteDied as error:
            zygote.children[child.number] = child
            self._died(zygote, str(error))

    def lost(self, child: Child, why: str) -> None:
        """A zygote that has such a child is of no use any more."""
        for zygote in self._zygotes:
            if child.number in zygote.children:
                self._died(zygote, why)
                return

    def pause(self, why: str) -> None:
        """No worker can be had: nothing starts for a while."""
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
        self._paused_until = time.monotonic() + self._pause_s
        self.waiting = why
        self._broker.tell({"op": "waiting", "why": why})

    def _add(self) -> None:
        try:
            zygote = Zygote(self._python, self.plan, self._preload)
        except OSError as error:
            self.pause(f"a zygote could not be started: {error}")
            return
        self._zygotes.append(zygote)
        self._broker.watch(zygote.fileno(), lambda: self._hear(zygote))

    def _remove(self, zygote: Zygote) -> None:
        self._zygotes.remove(zygote)
        self._broker.unwatch(zygote.fileno())
        zygote.close()

    def _hear(self, zygote: Zygote) -> None:
        try:
            child_of = dict(zygote.children)
            message = zygote.receive()
        except (ZygoteDied, OSError, ValueError, KeyError) as error:
            self._died(zygote, str(error))
            return
        child = child_of.get(message.get("id", -1))
        if message["ev"] == "ready":
            self._test(zygote, message)
        elif message["ev"] == "failed":
            self._died(zygote, message["why"])
        elif message["ev"] == "exit" and child is not None:
            self._pause_s = 0.0
            self._broker.ended(child)
        elif message["ev"] == "no_child" and child is not None:
            self._broker.refused(child, message["why"])
            self.pause(f"no process could be had: {message['why']}")

    def _test(self, zygote: Zygote, message: dict[str, Any]) -> None:
        """A zygote serves only once a child of it has tried to break out, and could not."""
        zygote.state, zygote.versions = "testing", message["versions"]
        zygote.rss_mb = message["rss_kb"] / 1024
        if zygote.plan.tier == "unsafe":
            self._serve(zygote)
            return
        job = Job(-1, [probes.program(zygote.plan)], TEST_LIMITS, lambda _, r: self._tested(zygote, r))
        job.internal = True
        self._broker.start(job, zygote)

    def _tested(self, zygote: Zygote, result: Result) -> None:
        if zygote not in self._zygotes:
            return
        wrong = result.reason or probes.complaint(result.status, result.stdout, result.stderr)
        if wrong:
            self._died(zygote, wrong)
        else:
            self._serve(zygote)

    def _serve(self, zygote: Zygote) -> None:
        zygote.state = "ready"
        old = [z for z in self._zygotes if z.state == "ready" and z.served >= CALLS]
        if old:
            old[0].state = "retired"
        if not self._settled:
            self._settled = True
            self._broker.tell(
                {
                    "op": "ready",
                    "tier": self.plan.tier,
                    "layers": self.plan.layers,
                    "versions": zygote.versions,
                    "refusals": self._refusals,
                }
            )

    def _died(self, zygote: Zygote, why: str) -> None:
        children = list(zygote.children.values())
        self._remove(zygote)
        for child in children:
            self._broker.lost(child, f"the zygote died: {why}")
        if self._settled:
            self._broker.tell({"op": "restarted", "why": why})
            if zygote.state in ("starting", "testing"):
                self.pause(f"a zygote could not be started: {why}")
        else:
            self._next_plan(why)

    def _next_plan(self, why: str) -> None:
        self._refusals.append(f"{self.plan.tier} ({self.plan.layers}): {why}")
        if len(self._plans) > 1:
            del self._plans[0]
            self._add()
        else:
            self._broker.tell({"op": "refused", "why": self._refusals})
