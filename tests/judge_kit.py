"""A chat endpoint in a thread, for the tests of the language model as judge."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = str | tuple[int, str] | Callable[["Server"], str]


class Server(ThreadingHTTPServer):
    """Gives ``answers`` in order, and the last of them for ever: what the model says, or (status, body)."""

    daemon_threads = True

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.heard: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.headers: dict[str, str] = {}  # sent with refusals
        self.usage: dict[str, int] | None = {"total_tokens": 100}
        self.lock = threading.Lock()
        self.now = self.most = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, *_: Any) -> None:
        """A client that gave up."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.heard.append((self.path, dict(self.headers), body))
            answer = server.answers[min(len(server.heard), len(server.answers)) - 1]
            server.now += 1
            server.most = max(server.most, server.now)
        try:
            said = answer(server) if callable(answer) else answer
        finally:
            with server.lock:
                server.now -= 1
        if isinstance(said, tuple):
            self.reply(*said, server.headers)
        else:
            reply = {
                "choices": [{"message": {"role": "assistant", "content": said}}],
                "usage": server.usage,
            }
            self.reply(200, json.dumps(reply), {})

    def reply(self, status: int, text: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving() -> Iterator[Callable[..., Server]]:
    """A function that starts servers with answers; they end with the context."""
    servers: list[Server] = []

    def start(*answers: Answer) -> Server:
        server = Server(list(answers))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    try:
        yield start
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
