"""Bad weather in front of an S3 endpoint: an HTTP proxy that fails the requests that a test picks.

    with Flaky(endpoint.address, every(7, answer(503, "SlowDown"))) as flaky:
        ...  # talk to flaky.address in place of endpoint.address

A plan is called with each request before it is forwarded and gives a fault, or None: forward it. It may be
replaced at any time. `flaky.seen` holds every request in the order of arrival, `flaky.failed` those that met
a fault. Faults: `answer(status, code)`, `reset`, `stall`, `trickle`. Plans: `calm`, `every`, `matching`,
`only_key`, or any function of a `Request`.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

_OF_THE_CONNECTION = {"host", "connection", "transfer-encoding", "content-length", "expect", "date", "server"}
"""Headers that are not forwarded."""


@dataclass(frozen=True)
class Request:
    number: int
    """Counts from 1."""
    line: str
    """`PUT /bucket/key?partNumber=3&uploadId=...`"""
    access_key: str


Fault = Callable[["_Handler"], None]
Plan = Callable[[Request], Fault | None]


def answer(status: int, code: str) -> Fault:
    """An S3 error document instead of what was asked for."""

    def fault(handler: _Handler) -> None:
        text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        handler.reply(status, {"Content-Type": "application/xml", "Connection": "close"}, text)

    return fault


def reset(handler: _Handler) -> None:
    """The connection is reset: with zero linger, closing sends RST, not FIN."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def stall(handler: _Handler) -> None:
    """The request is read and never answered, until the proxy is closed."""
    handler.server.flaky.closed.wait()


def trickle(handler: _Handler) -> None:
    """An answer of a million blanks, one each tenth of a second."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not handler.server.flaky.closed.wait(0.1):
        handler.wfile.write(b" ")


def calm(request: Request) -> None:
    """No faults."""


def every(n: int, fault: Fault) -> Plan:
    """Each n-th request fails."""
    return lambda request: fault if request.number % n == 0 else None


def matching(pattern: str, fault: Fault, times: float = float("inf")) -> Plan:
    """Requests whose line matches fail: the first `times` of them, or all."""
    met = count(1)
    return lambda request: fault if re.search(pattern, request.line) and next(met) <= times else None


def only_key(key: Callable[[], str], fault: Fault) -> Plan:
    """Requests that are not signed with the key that is valid at that moment fail."""
    return lambda request: None if request.access_key == key() else fault


class Flaky:
    def __init__(self, upstream: str, plan: Plan = calm) -> None:
        """`upstream`: the `host:port` of the endpoint behind."""
        self.upstream, self.plan = upstream, plan
        self.seen: list[Request] = []
        self.failed: list[Request] = []
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.flaky = self
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Flaky:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def query(self) -> str:
        """For a URI of pyarrow.fs."""
        return f"endpoint_override={self.address}&scheme=http&region=us-east-1"

    def fault_for(self, line: str, access_key: str) -> Fault | None:
        with self._lock:
            request = Request(len(self.seen) + 1, line, access_key)
            self.seen.append(request)
            fault = self.plan(request)
            if fault is not None:
                self.failed.append(request)
            return fault


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    flaky: Flaky


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_any(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client has given up
            body = self._body()
            signed = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
            fault = self.server.flaky.fault_for(f"{self.command} {self.path}", signed[1] if signed else "")
            if fault is None:
                self._forward(body)
                return
            fault(self)
        self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any

    def reply(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OF_THE_CONNECTION - {"connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _forward(self, body: bytes) -> None:
        behind = http.client.HTTPConnection(self.server.flaky.upstream)
        asked = {name: text for name, text in self.headers.items() if name.lower() not in _OF_THE_CONNECTION}
        behind.request(self.command, self.path, body, asked)
        response = behind.getresponse()
        content = response.read()
        headers = {name: text for name, text in response.getheaders() if name.lower() != "connection"}
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.reply(response.status, headers, content, length)
        behind.close()
