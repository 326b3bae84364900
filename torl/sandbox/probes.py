"""What a child tries right after a zygote has started: to break out, and to do ordinary work."""

import json

from torl.sandbox.tiers import Plan

# Each must be refused. Run in one child, which prints what succeeded.
ESCAPES = {
    "read a file of the host": "open('/etc/passwd').read()",
    "list the root's processes": "os.listdir('/proc/1')",
    "write outside its directory": "open('/tmp/torl-probe', 'x')",
    "change a file's mode": "os.chmod('/usr', 0o755)",
    "open a socket": "socket.socket()",
    "start a process": "os.fork() or os._exit(0)",
    "run a program": "os.execv('/bin/true', ['true'])",
    "signal its parent": "os.kill(os.getppid() or 1, 0)",
    "limit another process": "resource.prlimit(os.getppid() or 1, resource.RLIMIT_CPU)",
    "become root": "os.setresuid(0, 0, 0)",
    "make a namespace": "check(libc.unshare(0x10000000))",
    "trace a process": "check(libc.ptrace(16, os.getppid() or 1, 0, 0))",
    "hold memory outside its limit": "os.memfd_create('x')",
    "raise its limits": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
}
WORKS = {
    "a library not yet loaded": "import xml.sax.saxutils, wave",
    "a thread": "t = threading.Thread(target=int); t.start(); t.join()",
    "a null device": "open('/dev/null', 'w').write('x')",
    "a file of its own": "open('probe', 'w').write('x')",
}

HEAD = """
import ctypes, json, os, resource, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
def check(code):
    if code < 0:
        raise OSError(ctypes.get_errno(), 'refused')
escaped, failed = [], []
"""
TRY = "try:\n    exec({code!r})\n    {on_success}\nexcept Exception as error:\n    {on_failure}\n"


def program(plan: Plan) -> str:
    """The code of the self-test, without what the tier does not promise."""
    works = dict(WORKS)
    if plan.files != "scratch":
        works.pop("a file of its own")
    if plan.files == "none":
        works = {"a thread": works["a thread"]}
    parts = [HEAD]
    for name, code in ESCAPES.items():
        parts.append(TRY.format(code=code, on_success=f"escaped.append({name!r})", on_failure="pass"))
    for name, code in works.items():
        on_failure = f"failed.append({name!r} + ': ' + str(error))"
        parts.append(TRY.format(code=code, on_success="pass", on_failure=on_failure))
    parts.append("print(json.dumps([escaped, failed]))")
    return "".join(parts)


def complaint(status: str, stdout: str, stderr: str) -> str:
    """What the self-test found wrong; empty when all is well."""
    if status != "ok":
        return f"the self-test ended with {status}: {stderr.strip().splitlines()[-1:]}"
    try:
        escaped, failed = json.loads(stdout)
    except ValueError:
        return "the self-test's child became another program"
    if escaped:
        return f"a child could {', '.join(escaped)}"
    return f"a child could not use {', '.join(failed)}" if failed else ""
