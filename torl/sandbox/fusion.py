"""SandboxFusion's request and answer, and what they are in the sandbox's own words.

What its server does, read from its source, and what we make of it:

    request        there                              here
    code           a file, run by ``python``          a snippet; the last value is in ``torl.value``
    language       one of 29                          "python", also when left out; others: 422
    run_timeout    wall clock, 10 s if not given      the same, but never above our own ``timeout_s``
    compile_timeout  unused for Python                unused
    memory_limit_MB  whole address space, <= 0: none  beyond the warm interpreter, never above our
                                                      own ``memory_mb``; <= 0: our own
    stdin          text; end of file at once if null  the same
    files          written before the run             refused (422) unless empty
    fetch_files    read after the run                 refused (422) unless empty

    outcome                  status        run_result.status  return_code
    exit code 0              Success       Finished           0
    another exit code        Failed        Finished           the code
    ended by signal n        Failed        Finished           -n (137, 139: n + 128, by way of a shell)
    time limit               Failed        TimeLimitExceeded  null
    the sandbox's own fault  SandboxError  Error              null

All of these come with HTTP 200; only a request of the wrong form gets 422. ``message`` is empty but
for a SandboxError. Other clients ignore the keys named ``torl``: in the request, ``torl.limits``
asks for any of our Limits by name; in the answer, ``torl`` has the fields of Result that
SandboxFusion lacks, and ``notes`` on what was asked for and not granted.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from torl.errors import UserError
from torl.sandbox.capture import Capture
from torl.sandbox.types import LEAST_MEMORY_MB, Limits, Report, Result, Tier

SPARE_MEMORY_MB = 1024  # asked of SandboxFusion on top: there the interpreter and its libraries count
LEAST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 60.0  # that a server may ask for
SHELL_SIGNALS = (134, 137, 139)  # exit codes by which a shell tells of signals 6, 9, 11
LIMIT_NAMES = [field.name for field in dataclasses.fields(Limits) if field.name != "workers"]
_APART = ("stdout", "stderr", "lives")  # not in the answer's ``torl``

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Asked(BaseModel):
    """The request's ``torl``. Limits of a newer version, which are not known here, are passed over."""

    limits: dict[str, Positive] = {}


class Request(BaseModel):
    """The body of POST /run_code."""

    code: str
    language: str = "python"
    run_timeout: Positive = 10.0
    compile_timeout: float = 10.0
    memory_limit_MB: Annotated[int, Field(le=1 << 40)] = -1
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []
    torl: Asked = Asked()

    @field_validator("language")
    @classmethod
    def _is_python(cls, value: str) -> str:
        if value != "python":
            text = "this service runs 'python' only, not '{language}'"
            raise PydanticCustomError("literal_error", text, {"language": value[:40]})
        return value

    @field_validator("files", "fetch_files")
    @classmethod
    def _has_no_files(cls, value: Any) -> Any:
        if value and not (isinstance(value, dict) and set(value.values()) == {None}):
            text = "this service carries no files: leave it empty, and put the data into the code"
            raise PydanticCustomError("unsupported", text)
        return value


class CommandResult(BaseModel):
    """What became of one process."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None  # s
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class Answer(BaseModel):
    """The body of the answer to POST /run_code."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    torl: dict[str, Any] | None = None


_RESULT = TypeAdapter(Result)


# --- the service's side ---------------------------------------------------------------------------


def read_request(body: bytes) -> Request:
    """Raises pydantic's ValidationError, and nothing else, whatever the bytes are."""
    return Request.model_validate_json(body)


def details(error: ValidationError) -> list[dict[str, Any]]:
    """What is wrong with a request, in the form of FastAPI's answer 422."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"type": each["type"], "loc": ["body", *each["loc"]], "msg": each["msg"]} for each in found]


def limits_of(request: Request, ceiling: Limits) -> tuple[Limits, list[str]]:
    """This call's limits, and a note for each thing that was asked for and not granted."""
    asked: dict[str, tuple[str, float]] = {"timeout_s": ("run_timeout", request.run_timeout)}
    if request.memory_limit_MB > 0:
        asked["memory_mb"] = ("memory_limit_MB", request.memory_limit_MB)
    asked |= {name: (f"torl.limits.{name}", value) for name, value in request.torl.limits.items()}
    granted: dict[str, Any] = {}
    notes = []
    for name, (field, value) in asked.items():
        if name not in LIMIT_NAMES:
            notes.append(f"{field} is not known here")
            continue
        most = getattr(ceiling, name)
        granted[name] = _granted(name, value, most)
        given = name in request.torl.limits or field in request.model_fields_set
        if value > most and given:
            notes.append(f"{field}={value:g}: this service grants {most:g} at most")
        elif granted[name] > math.ceil(value):
            notes.append(f"{field}={value:g}: {granted[name]} is the least")
    return dataclasses.replace(ceiling, **granted), notes


def _granted(name: str, value: float, most: float) -> float:
    if isinstance(most, float):
        return min(value, most)
    least = LEAST_MEMORY_MB if name == "memory_mb" else 1
    return min(most, max(least, math.ceil(value)))


def answer_of(result: Result, notes: list[str], pod: str | None = None) -> dict[str, Any]:
    """The answer's body. Text and numbers are never null but for return_code: clients join them."""
    fault = result.status == "sandbox_error"
    timeout = result.status in ("timeout_wall", "timeout_cpu")
    code = result.exit_code if result.exit_code is not None else -(result.signal or 0)
    extra = {name: value for name, value in vars(result).items() if name not in _APART}
    return {
        "status": "SandboxError" if fault else "Success" if result.status == "ok" else "Failed",
        "message": result.reason if fault else "",
        "compile_result": None,
        "run_result": {
            "status": "Error" if fault else "TimeLimitExceeded" if timeout else "Finished",
            "execution_time": result.run_s,
            "return_code": None if fault or timeout else code,
            "stdout": result.stdout,
            "stderr": result.stderr or result.reason,
        },
        "executor_pod_name": pod,
        "files": {},
        "torl": extra | {"notes": notes},
    }


# --- the client's side ----------------------------------------------------------------------------


def address(url: str) -> str:
    """A server's address, from one with or without /run_code. Raises UserError when it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"sandbox.urls: {url!r} is not an address such as http://host:8080")
    return url.rstrip("/").removesuffix("/run_code").rstrip("/")


def request_of(code: str, stdin: str, limits: Limits) -> dict[str, Any]:
    """The body to send, to either kind of server.

    Lone surrogates, which JSON's readers refuse, become question marks.
    """
    return {
        "code": code.encode("utf-8", "replace").decode(),
        "language": "python",
        "run_timeout": limits.timeout_s,
        "compile_timeout": limits.timeout_s,
        "memory_limit_MB": limits.memory_mb + SPARE_MEMORY_MB,
        "stdin": stdin.encode("utf-8", "replace").decode() or None,
        "files": {},
        "fetch_files": [],
        "torl": {"limits": {name: getattr(limits, name) for name in LIMIT_NAMES}},
    }


def result_of(body: bytes, limits: Limits) -> Result:
    """The Result that an answer stands for; ``limits`` say how much output is kept.

    Raises ValueError when the body is not such an answer, or contradicts itself.
    """
    answer = Answer.model_validate_json(body)
    run = answer.run_result
    if answer.torl is not None and run is not None:
        streams = {"stdout": run.stdout or "", "stderr": run.stderr or ""}
        return _RESULT.validate_python({**answer.torl, **streams})
    if answer.status == "SandboxError" or (run is not None and run.status == "Error"):
        why = answer.message or (run and run.stderr) or "no reason is given"
        return Result("sandbox_error", reason=why)
    if run is None:
        raise ValueError(f"status {answer.status} without a run_result")
    return _derived(run, limits)


def _derived(run: CommandResult, limits: Limits) -> Result:
    output = _streams(run, limits)
    run_s = run.execution_time or 0.0
    code = run.return_code
    if run.status == "TimeLimitExceeded":
        return Result("timeout_wall", signal=9, run_s=run_s, **output)
    if code is None:
        raise ValueError("a run that has Finished, without a return_code")
    if code == 0:
        return Result("ok", exit_code=0, run_s=run_s, **output)
    if code < 0 or code in SHELL_SIGNALS:
        return Result("crashed", signal=-code if code < 0 else code - 128, run_s=run_s, **output)
    return Result("error", exit_code=code, run_s=run_s, **output)


def _streams(run: CommandResult, limits: Limits) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
        capture = Capture(limits.output_kb << 10)
        capture.feed((text or "").encode("utf-8", "replace"))
        found[name], found[f"{name}_cut"] = capture.text()
        found[f"{name}_bytes"] = capture.seen
    return found


class Fault(Exception):
    """A call that failed by the world's doing, not by the code's."""

    def __init__(self, why: str, *, lost: bool = True, final: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(why)
        self.lost = lost  # the server may have begun the call
        self.final = final  # it would be the same again
        self.pause_s = pause_s  # for which the server wants no calls

    @property
    def busy(self) -> bool:
        """The server is well, and has no room."""
        return self.pause_s > 0


def refusal(status: int, body: bytes, retry_after: str = "") -> Fault:
    """The fault that another HTTP status than 200 stands for."""
    why = f"HTTP {status}: {body[:300].decode('utf-8', 'replace')}"
    if status in (429, 503):
        seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 1.0
        return Fault(why, lost=False, pause_s=min(max(seconds, LEAST_PAUSE_S), LONGEST_PAUSE_S))
    return Fault(why, final=400 <= status < 500 and status not in (401, 403, 404, 405, 408))


def report_of(well: Mapping[str, Mapping[str, Any]], lost: list[str], slots: int) -> Report:
    """Of what servers say at /health, by address; the weakest tier, and "unsafe" for one that is silent."""
    tiers = get_args(Tier)  # the strongest first
    found: list[Tier] = [
        about["tier"] if about.get("tier") in tiers else "unsafe" for about in well.values()
    ]
    unknown = "SandboxFusion, isolation unknown"
    pythons = {str(about["python"]) for about in well.values() if about.get("python")}
    versions = [about["versions"] for about in well.values() if isinstance(about.get("versions"), dict)]
    return Report(
        tier=max(found, key=tiers.index),
        layers="; ".join(f"{url}: {about.get('layers') or unknown}" for url, about in well.items()),
        versions=versions[0] if versions else {},
        refusals=lost,
        python=", ".join(sorted(pythons)) or "unknown",
        slots=slots,
    )
