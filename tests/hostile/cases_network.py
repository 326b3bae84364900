"""E: the network, and sockets of every kind."""

from typing import Any

from .case import Case, attempt

QUICK: dict[str, Any] = {"timeout_s": 2.0}  # a refusal comes at once, not after a resolver's wait


def closed(name: str, code: str, setup: str = "import socket", *, breaks: str = "") -> Case:
    return Case(
        name, attempt(code, setup), out="[Ee]rror|refused", limits=QUICK, breaks=breaks, alone=bool(breaks)
    )


def kind(name: str, *arguments: str) -> Case:
    """A kind of socket that cannot be made."""
    return closed(f"socket_{name}", f"socket.socket({', '.join(arguments)})")


REUSE = """
import ctypes, os, socket
a, b = socket.socketpair()
libc = ctypes.CDLL(None, use_errno=True)
address = b'\\x02\\x00' + (@PORT@).to_bytes(2, 'big') + bytes([127, 0, 0, 1]) + bytes(8)
print(libc.connect(a.fileno(), address, 16), libc.sendto(a.fileno(), b'x', 1, 0, address, 16))
try: a.sendto(b'x', '\\0torl-@ABSTRACT@')
except OSError as e: print(type(e).__name__)
"""
DATAGRAM_PAIR = """
import socket
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
for path in ('@DIR@/log', '\\0torl-log-@ABSTRACT@'):
    for act in (a.connect, lambda p: a.sendto(b'x', p)):
        try: act(path); print('ESC' + 'APED')
        except OSError as e: print(type(e).__name__)
"""
PASS_DESCRIPTOR = """
import array, socket
a, b = socket.socketpair()
a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])
"""

FILTER = """
import ctypes, socket, struct
allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xffff))
program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow))
"""

CASES = [
    closed("tcp", "socket.create_connection(('127.0.0.1', @PORT@), timeout=1)", breaks="ESCAPED|host:"),
    closed(
        "tcp_by_name", "socket.create_connection(('localhost', @PORT@), timeout=1)", breaks="ESCAPED|host:"
    ),
    closed("tcp_listen", "socket.create_server(('127.0.0.1', 0))", breaks="ESCAPED"),
    closed("tcp_six", "socket.create_connection(('::1', @PORT@), timeout=1)"),
    closed(
        "udp",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @PORT@))",
        breaks="ESCAPED|host:",
    ),
    closed("unix", "s = socket.socket(socket.AF_UNIX)\ns.connect('@DIR@/socket')", breaks="ESCAPED|host:"),
    closed(
        "unix_abstract",
        "s = socket.socket(socket.AF_UNIX)\ns.connect('\\0torl-@ABSTRACT@')",
        breaks="ESCAPED|host:",
    ),
    closed("unix_listen", "s = socket.socket(socket.AF_UNIX)\ns.bind('\\0torl-other')", breaks="ESCAPED"),
    closed("docker", "s = socket.socket(socket.AF_UNIX)\ns.connect('/var/run/docker.sock')"),
    closed("dns", "socket.gethostbyname('example.com')"),
    closed("dns_info", "socket.getaddrinfo('example.com', 80)"),
    closed("dns_reverse", "socket.gethostbyaddr('127.0.0.1')"),
    closed(
        "url",
        "u.urlopen('http://127.0.0.1:@PORT@', timeout=1)",
        "import urllib.request as u",
        breaks="host:",
    ),
    closed(
        "url_file",
        "print(u.urlopen('file://@DIR@/answers.json').read())",
        "import urllib.request as u",
        breaks="ESCAPED",
    ),
    closed(
        "http",
        "h.HTTPConnection('127.0.0.1', @PORT@, timeout=1).request('GET', '/')",
        "import http.client as h",
        breaks="host:",
    ),
    closed("mail", "smtplib.SMTP('127.0.0.1', @PORT@, timeout=1)", "import smtplib", breaks="host:"),
    closed(
        "asyncio_connection",
        "asyncio.run(asyncio.wait_for(asyncio.open_connection('127.0.0.1', @PORT@), 1))",
        "import asyncio",
        breaks="ESCAPED|host:",
    ),
    closed(
        "asyncio_server",
        "async def s(): return (await asyncio.start_server(print, '127.0.0.1', 0)).sockets[0]\n"
        "asyncio.run(s())",
        "import asyncio",
        breaks="ESCAPED",
    ),
    closed(
        "metadata_service",
        "u.urlopen('http://169.254.169.254/latest/', timeout=1)",
        "import urllib.request as u",
    ),
    closed(
        "package_index",
        "x.ServerProxy('http://pypi.org/pypi').system.listMethods()",
        "import xmlrpc.client as x",
    ),
    Case(
        "pip",
        "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'x'])",
        "error",
        err="Error",
    ),
    Case(
        "pip_inside",
        "import pip\nfrom pip._internal.cli.main import main\n"
        "print('code', main(['download', 'no-such-package-torl', '--no-cache-dir', '-q', "
        "'--retries=0']))",
        "ok error",
        forbidden="code 0|ESCAPED",
    ),
    kind("packet", "socket.AF_PACKET", "socket.SOCK_RAW", "768"),
    kind("raw", "socket.AF_INET", "socket.SOCK_RAW", "1"),
    kind("ping", "socket.AF_INET", "socket.SOCK_DGRAM", "1"),
    kind("netlink", "socket.AF_NETLINK", "socket.SOCK_RAW", "0"),
    kind("vsock", "socket.AF_VSOCK", "socket.SOCK_STREAM"),
    kind("alg", "socket.AF_ALG", "socket.SOCK_SEQPACKET"),
    kind("can", "29", "socket.SOCK_RAW", "1"),
    kind("bluetooth", "31", "socket.SOCK_RAW", "1"),
    kind("tipc", "30", "socket.SOCK_SEQPACKET"),
    kind("xdp", "44", "socket.SOCK_RAW"),
    kind("qipcrtr", "42", "socket.SOCK_DGRAM"),
    kind("mptcp", "socket.AF_INET", "socket.SOCK_STREAM", "262"),
    kind("smc", "43", "socket.SOCK_STREAM"),
    Case("pair_reused", REUSE, out="^-1 "),
    Case("pair_of_datagrams", DATAGRAM_PAIR, out="Error", breaks="ESCAPED|host:", alone=True),
    closed("pair_filter", "socket.socketpair()[0].setsockopt(1, 26, program)", FILTER, breaks="ESCAPED"),
    Case("pair_peer", "import socket\na, b = socket.socketpair()\nprint(a.getsockopt(1, 77))", "ok error"),
    Case(
        "pair_works",
        "import socket\na, b = socket.socketpair()\na.sendall(b'hi')\nprint(b.recv(9))",
        out="^b'hi'$",
    ),
    Case("pair_inet", attempt("socket.socketpair(socket.AF_INET)", "import socket"), out="Error"),
    Case("descriptor_passed", PASS_DESCRIPTOR, "error", err="Error"),
    Case("interfaces", attempt("socket.if_nameindex()", "import socket"), out="Error"),
    Case("host_name", "import socket\nprint(type(socket.gethostname()).__name__)", out="^str$"),
    Case(
        "web_browser",
        "import webbrowser\nprint(webbrowser.open('http://127.0.0.1:@PORT@'))",
        "ok error",
        limits=QUICK,
    ),
]
