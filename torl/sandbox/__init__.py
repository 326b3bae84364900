"""Runs Python that a model wrote. A library on its own: it needs no torch.

    async with Sandbox(Limits(timeout_s=5.0)) as box:
        result = await box.run("print(12 * 31)")  # Result(status="ok", stdout="372\\n", ...)

Three trusted roles, each a process that knows less than the one before it::

    trainer ──▶ broker ──▶ zygotes ──▶ a child for each call
    box.py      broker.py  inside/     inside/child.py

The trainer never forks and never reads a pipe. The broker has the clocks, the pipes and the
verdicts. A zygote is a warm interpreter that holds no data; it forks a child, which puts its
layers on, in order, or does not run. docs/sandbox.md says what each tier promises.
"""

from torl.errors import SandboxFault
from torl.sandbox.box import Sandbox
from torl.sandbox.types import Limits, Report, Result, Status, Tier

__all__ = ["Limits", "Report", "Result", "Sandbox", "SandboxFault", "Status", "Tier"]
