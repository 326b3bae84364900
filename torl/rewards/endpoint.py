"""One request to an OpenAI-compatible chat endpoint, by the standard library, in a thread."""

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from torl.errors import RunHalted

LONGEST_REPLY = 1 << 22  # bytes
SHOWN = 300  # characters of an error's body


class Unavailable(Exception):
    """The endpoint did not answer, or not with an answer: it may do so later, ``after_s`` from now."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


@dataclass(frozen=True)
class Reply:
    """What the model said, and the tokens that the endpoint says it has used (None: it does not say)."""

    text: str
    total_tokens: int | None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the API key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(base_url: str, body: dict[str, Any], *, key: str, timeout_s: float) -> Reply:
    """POST {base_url}/chat/completions. Blocks for ``timeout_s`` at most, but for the look-up of the name.

    Raises Unavailable for timeouts, broken connections, HTTP 408, 429 and 5xx and for what is no reply;
    RunHalted for other answers: the address, the key or the request is wrong, and will be next time.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    url, end = f"{base_url}/chat/completions", time.monotonic() + timeout_s
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return _reply(_read(response, end))
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error, url, key) from None
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        raise Unavailable(f"{url}: {type(error).__name__}: {error}") from error


def _read(response: http.client.HTTPResponse, end: float) -> bytes:
    """The body, unless it trickles in beyond the limit."""
    data = b""
    while part := response.read1(1 << 16):
        data += part
        if time.monotonic() > end:
            raise TimeoutError("the reply did not end in time")
        if len(data) > LONGEST_REPLY:
            raise Unavailable(f"the reply is longer than {LONGEST_REPLY >> 20} MB")
    return data


def _reply(data: bytes) -> Reply:
    try:
        found = json.loads(data)
        text = found["choices"][0]["message"]["content"]
        used = (found.get("usage") or {}).get("total_tokens")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Unavailable(f"not a chat completion: {data[:SHOWN]!r}") from error
    return Reply(text if isinstance(text, str) else "", used if isinstance(used, int) else None)


def _refusal(error: urllib.error.HTTPError, url: str, key: str) -> Exception:
    """What an HTTP error means. The key is never shown, even where the endpoint repeats it."""
    try:
        body = error.read(LONGEST_REPLY).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        body = ""
    said = f"HTTP {error.code}: {body.replace(key, '***') if key else body}".strip()[:SHOWN]
    if error.code in (408, 429) or error.code >= 500:
        return Unavailable(f"{url}: {said}", _seconds(error.headers.get("Retry-After", "")))
    remedy = {
        401: "check the variable that llm_judge.api_key_env names",
        403: "check the variable that llm_judge.api_key_env names, and what its key may do",
        404: "check llm_judge.base_url (it ends before /chat/completions) and llm_judge.model",
    }.get(error.code, "check llm_judge.base_url, model, max_tokens and temperature against the endpoint")
    return RunHalted(f"llm_judge: {url} refuses: {said}; {remedy}")


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0
