"""Runs Python that a model wrote. A library on its own: it needs no torch.

    async with Sandbox(Limits(timeout_s=5.0)) as box:
        result = await box.run("print(12 * 31)")  # Result(status="ok", stdout="372\\n", ...)

Each call has a fresh interpreter in its own session, an empty directory that is removed
afterwards, a fixed environment, descriptors 0 to 2 only, limits on wall clock, processor,
address space, output, file size and open files, and is killed as a group from outside. Equal
code gives equal output: the hash seed, and the global generators of random and numpy, are
fixed (numpy.random.default_rng() and os.urandom are not).

This is **not a security boundary yet**. It holds against mistakes, not against malice:

- the code may read every file that this user may read, write where this user may write, use
  the network, and signal this user's other processes;
- a process that the code puts into a session of its own outlives the call (it cannot delay
  the call's end, nor does the sandbox find it);
- memory is limited per process, not per call; the number of processes is limited for ordinary
  users, but the kernel does not enforce that for root: a fork bomb there lives until the time
  limit kills the group;
- the number of files and the sum of their sizes are not limited;
- when this process is killed, a snippet lives on until its time limit and its directory stays.

System-call filters and namespaces are to narrow what a call may do, behind this same
interface.
"""

from torl.errors import SandboxFault
from torl.sandbox.box import Sandbox
from torl.sandbox.types import Limits, Result, Status

__all__ = ["Limits", "Result", "Sandbox", "SandboxFault", "Status"]
