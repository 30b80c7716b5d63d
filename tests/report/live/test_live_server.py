"""The server of a live page, asked as browsers ask and as nobody should."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from live_runs import Writer

from fewfed.errors import ConfigError
from fewfed.report.live import server as server_module
from fewfed.report.live.neighbours import is_of_this_user
from fewfed.report.live.server import PageServer
from fewfed.report.live.serving import following


@contextmanager
def serving(*folders: Path, port: int = 0) -> Iterator[PageServer]:
    with following(folders, port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    root: Path = tmp_path_factory.mktemp("served")
    Writer(root / "run").go_on(3)
    (root / "secret.txt").write_text("secret")
    with serving(root) as found:
        yield found


def port_of(server: PageServer) -> int:
    return int(server.server_address[1])


class Reply:
    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = found.status, found.headers, found.read()


def ask(server: PageServer, path: str = "/data.json", method: str = "GET", **headers: str) -> Reply:
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return Reply(connection.getresponse())


def say(server: PageServer, text: bytes) -> bytes:
    """Whatever somebody may send; what comes back."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as line:
        line.sendall(text)
        line.shutdown(socket.SHUT_WR)
        found = b""
        while chunk := line.recv(1 << 16):
            found += chunk
        return found


def test_the_page_and_its_data_are_there(server: PageServer) -> None:
    page = ask(server, "/")
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b'id="live"' in page.body
    data = json.loads(ask(server).body)
    assert [(run["state"], run["done"]) for run in data["live"]["runs"]] == [("stopped", 3)]
    deadline = time.monotonic() + 20
    while "main" not in (data := json.loads(ask(server).body)):
        assert time.monotonic() < deadline
    assert "fedavg" in data["main"]


def test_what_has_not_changed_is_not_sent_again(server: PageServer) -> None:
    ask(server)
    time.sleep(1.0)
    first = ask(server)
    again = ask(server, If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    assert ask(server, If_None_Match='W/"other"').status == 200


def test_the_data_are_packed_for_whoever_takes_them_so(server: PageServer) -> None:
    ask(server)
    time.sleep(1.0)
    plain, packed = ask(server), ask(server, Accept_Encoding="br, gzip;q=0.5")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert "Content-Encoding" not in plain.headers


@pytest.mark.parametrize("path", ["/", "/data.json"])
def test_only_the_head_is_sent_to_whoever_asks_for_it(server: PageServer, path: str) -> None:
    head = ask(server, path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) > 100


@pytest.mark.parametrize(
    "path",
    ["/secret.txt", "/run/config.json", "/../secret.txt", "/%2e%2e/secret.txt", "/data.json/", "/DATA.JSON",
     "/data.json%00", "/index.html", "/favicon.ico", "http://127.0.0.1/", "*", "/" + "x" * 5000],
)  # fmt: skip
def test_nothing_else_is_there(server: PageServer, path: str) -> None:
    found = say(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert found.split(b" ")[1] == b"404"
    assert b"secret" not in found
    assert found.endswith(b"404 Not Found\n")


@pytest.mark.parametrize("path", ["/?x=../..", "/data.json?now"])
def test_what_stands_behind_a_question_mark_is_not_looked_at(server: PageServer, path: str) -> None:
    assert ask(server, path).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW"])
def test_nothing_can_be_done_but_reading(server: PageServer, method: str) -> None:
    found = ask(server, "/", method)
    assert (found.status, found.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8370", "127.0.0.1.evil.example", "", "[::1]", "0.0.0.0"]
)
def test_a_page_of_somebody_else_cannot_read_along_under_another_name(server: PageServer, host: str) -> None:
    """DNS rebinding: a name that leads here all of a sudden."""
    for path in ("/", "/data.json"):
        assert ask(server, path, Host=host).status == 421


def test_a_name_is_needed_once(server: PageServer) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        assert say(server, b"GET /data.json HTTP/1.1\r\n" + hosts + b"\r\n").split(b" ")[1] == b"421"


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1", "127.0.0.1:1"])
def test_this_machine_may_be_called_by_its_names_also_behind_a_forwarded_port(server: PageServer, host: str) -> None:
    assert ask(server, Host=host).status == 200


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/data.json", "GET"), ("/nothing", "GET"), ("/", "POST")])
def test_every_answer_says_what_a_browser_must_not_do(server: PageServer, path: str, method: str) -> None:
    headers = ask(server, path, method).headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    "text",
    [b"", b"\r\n\r\n", b"GET", b"GET /\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n",
     b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500, b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"y" * 100_000, b"\xff\xfe / HTTP/1.1\r\nHost: localhost\r\n\r\n"],
)  # fmt: skip
def test_nonsense_is_refused_and_costs_nobody_else(
    server: PageServer, text: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    found = say(server, text)
    assert b" 200 " not in found[:20]
    assert b"<html" not in found
    assert ask(server).status == 200
    assert capfd.readouterr().err == ""


def test_clients_that_hang_keep_nobody_waiting(server: PageServer) -> None:
    lines = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(server_module._MOST_CLIENTS - 2)]
    try:
        for line in lines:
            line.sendall(b"GET / HT")
        began = time.monotonic()
        assert ask(server).status == 200
        assert time.monotonic() - began < 5
    finally:
        for line in lines:
            line.close()


def test_more_clients_than_there_is_room_for_are_turned_away_and_later_ones_are_not(server: PageServer) -> None:
    most = server_module._MOST_CLIENTS
    lines = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(most + 10)]
    time.sleep(0.5)
    for line in lines:
        line.close()
    deadline = time.monotonic() + 15
    while True:
        try:
            assert ask(server).status == 200
            break
        except (ConnectionError, http.client.HTTPException):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_client_that_does_not_read_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module._Handler, "timeout", 0.5)
    Writer(tmp_path / "run").go_on(3)
    with serving(tmp_path) as server:
        server.page = lambda: "x" * (50 << 20)
        with socket.create_connection(("127.0.0.1", port_of(server))) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(0.1)
            assert ask(server).status == 200
            time.sleep(1.5)
        assert server._free._value == server_module._MOST_CLIENTS  # type: ignore[attr-defined]


def test_a_port_that_is_taken_is_told_in_a_sentence(server: PageServer) -> None:
    with pytest.raises(ConfigError, match=r"port \d+ cannot be had .*: choose another with --port"):
        PageServer(port_of(server), lambda: "", lambda: None)  # type: ignore[arg-type, return-value]


def test_only_this_machine_is_listened_to(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def as_nobody(asks: Callable[[], bytes]) -> bytes:
    """What a process hears that gives up its rights, where these tests have any; nothing where the line is down before
    all was said."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = b"?"
        try:
            os.setuid(65534)
            found = asks()
        except TimeoutError:
            found = b"no answer in time"
        except OSError:
            found = b""
        finally:
            os.write(writing, found or b"nothing")
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    found = os.read(reading, 100)
    os.close(reading)
    return found


ASKED = b"GET /data.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


def by_the_older_protocol(server: PageServer) -> bytes:
    """Without a name to be looked up: what that needs, another user may not be able to load."""
    return heard(socket.AF_INET, "127.0.0.1", server)


def by_the_newer_protocol(server: PageServer) -> bytes:
    """The same address by a socket of IPv6, whose end of the connection stands in another table."""
    return heard(socket.AF_INET6, "::ffff:127.0.0.1", server)


def heard(family: socket.AddressFamily, address: str, server: PageServer) -> bytes:
    with socket.socket(family) as line:
        line.settimeout(20)
        line.connect((address, port_of(server)))
        line.sendall(ASKED)
        return line.recv(12)


def behind_what_is_left_of_others(server: PageServer) -> bytes:
    """Many connections from one port at many addresses are closed, after which the system counts them as root's; then
    one more from the same port."""

    def connected(address: str) -> socket.socket:
        line = socket.socket()
        line.settimeout(20)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind((address, port))
        line.connect(("127.0.0.1", port_of(server)))
        return line

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    for number in range(1, 60):
        connected(f"127.0.1.{number}").close()
    time.sleep(0.3)
    found = b""
    for number in range(1, 10):
        with connected(f"127.0.2.{number}") as line, contextlib.suppress(OSError):
            line.sendall(ASKED)
            found = found or line.recv(12)
    return found


@pytest.mark.parametrize("way", [by_the_older_protocol, by_the_newer_protocol, behind_what_is_left_of_others])
def test_another_user_of_the_machine_is_not_answered(server: PageServer, way: Callable[[PageServer], bytes]) -> None:
    """Really: by a process of that user."""
    assert as_nobody(lambda: way(server)) == b"nothing"


@pytest.mark.parametrize("way", [by_the_older_protocol, behind_what_is_left_of_others])
def test_this_user_is_answered_whichever_way(server: PageServer, way: Callable[[PageServer], bytes]) -> None:
    assert way(server) == b"HTTP/1.0 200"


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   1: {}:{:04X} {}:{:04X} 01 00000000:00000000 00:00000000 00000000 {:5d}        0 1 1\n"
OWN = ("127.0.0.1", 8370)


def written(address: str) -> str:
    """An address as the table of this machine's kind writes it."""
    return f"{struct.unpack('=I', socket.inet_aton(address))[0]:08X}"


def test_whose_a_connection_is_stands_in_the_table_of_the_system(tmp_path: Path) -> None:
    me, here, other = os.getuid(), written("127.0.0.1"), written("127.0.0.2")
    mapped = "0" * 16 + f"{struct.unpack('=I', bytes((0, 0, 255, 255)))[0]:08X}" + here
    older, newer = tmp_path / "tcp", tmp_path / "tcp6"
    rows = [(other, 5001, here, 8370, me), (here, 5000, here, 8370, me), (here, 5001, here, 8370, me + 1),
            (here, 5002, here, 1, 9), (here, 8370, here, 5003, me)]  # fmt: skip
    older.write_text(HEAD + "odd\n" + "".join(ROW.format(*row) for row in rows))
    newer.write_text(HEAD + ROW.format(mapped, 5004, mapped, 8370, me) + ROW.format(mapped, 5005, mapped, 8370, me + 1))
    told = {
        port: is_of_this_user(("127.0.0.1", port), OWN, (older, newer)) for port in (5000, 5001, 5002, 5003, 5004, 5005)
    }
    assert told == {5000: True, 5001: False, 5002: False, 5003: False, 5004: True, 5005: False}


def test_where_the_system_does_not_tell_nobody_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(HEAD + ROW.format("0" * 8, 22, "0" * 8, 0, 0))
    assert is_of_this_user(("127.0.0.1", 5000), OWN, (tmp_path / "tcp", tmp_path / "missing"))
    assert is_of_this_user(("127.0.0.1", 5000), OWN, (tmp_path / "missing",))
