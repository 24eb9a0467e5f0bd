"""Bodies that are too deep, too long, or too much work; what they cost in memory."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chatapi.wire import caps
from tests.bad_input import raw_http
from tests.bad_input.bodies import CHAT, POSTED, body_for, chat, refusal, with_member
from tests.bad_input.raw_http import RawClient
from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

MIB = 1024 * 1024
CAP_BYTES = 8 * MIB
TOO_LARGE = (413, "request_too_large")

# ---- depth

NESTING = {
    "arrays": (b"[", b"]"),
    "objects": (b'{"a":', b"}"),
    "both": (b'[{"a":', b"}]"),
    "behind brackets in strings": (b'["]]",{"}":', b"}]"),
}


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("levels", [caps.MAX_DEPTH + 1, 1_000, 60_000])
@pytest.mark.parametrize("kind", NESTING)
def test_nesting_is_refused_before_it_is_parsed(suspect: Client, path: str, kind: str, levels: int) -> None:
    opening, closing = NESTING[kind]
    deep = with_member(body_for(path), "metadata", opening * levels + b"0" + closing * levels)
    assert refusal(suspect.send("POST", path, deep)) == (400, "too_deep", None)
    assert refusal(suspect.send("POST", path, opening * levels))[:2] == (400, "too_deep")


# ---- how many, how long


TOO_MANY: dict[str, tuple[dict[str, Any], tuple[int, str]]] = {
    "a million messages": ({"messages": [{}] * 1_000_000}, TOO_LARGE),
    "a million numbers": ({"stop": [0] * 1_000_000}, TOO_LARGE),
    "300,000 keys": ({"metadata": {f"{number:x}": "" for number in range(300_000)}}, TOO_LARGE),
    "300,000 parameters": ({f"{number:x}": 0 for number in range(300_000)}, TOO_LARGE),
    "100,000 parameters": ({f"{number:x}": 0 for number in range(100_000)}, (400, "unknown_parameter")),
    "100,000 content parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]},
        TOO_LARGE,
    ),
    "2,049 content parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2_049}]},
        (400, "invalid_value"),
    ),
    "2,049 messages": ({"messages": [{"role": "user", "content": "a"}] * 2_049}, (400, "invalid_value")),
    "129 tools": ({"tools": [{"type": "function", "function": {"name": "f"}}] * 129}, (400, "invalid_value")),
    "a model's name of 8 MB": ({"model": "m" * 8_000_000}, (400, "invalid_value")),
    "a role of 8 MB": ({"messages": [{"role": "r" * 8_000_000, "content": ""}]}, (400, "invalid_value")),
    "a user of 8 MB": ({"user": "u" * 8_000_000}, (400, "invalid_value")),
    "a key of 8 MB": ({"k" * 8_000_000: 1, "model": 5}, (400, "invalid_type")),
    "metadata of 1 MB": ({"metadata": {"a": "v" * MIB}}, (400, "invalid_value")),
    "an engine's parameter of 1 MB": ({"guided_regex": "(" * MIB}, (400, "invalid_value")),
}


@pytest.mark.parametrize("case", TOO_MANY)
def test_more_than_a_cap_is_refused(suspect: Client, case: str) -> None:
    members, shown = TOO_MANY[case]
    assert refusal(suspect.send("POST", CHAT, chat(**members)))[:2] == shown


@pytest.mark.parametrize("path", POSTED)
def test_a_body_of_exactly_the_cap_is_read(suspect: Client, path: str) -> None:
    body = with_member(body_for(path), "user", "3")
    assert refusal(suspect.send("POST", path, body.ljust(CAP_BYTES))) == (400, "invalid_type", "user")
    assert refusal(suspect.send("POST", path, body.ljust(CAP_BYTES + 1)))[:2] == TOO_LARGE


def test_a_body_of_8_mib_of_text_is_answered(client: Client) -> None:
    body = chat(messages=[{"role": "user", "content": "x"}])
    body = body.replace(b'"x"', b'"' + b"x" * (CAP_BYTES - len(body) + 1) + b'"')
    assert len(body) == CAP_BYTES
    assert client.send("POST", CHAT, body).status == 200


def test_a_chunked_body_is_cut_at_the_cap(raw: RawClient) -> None:
    raw.send(raw.head_of("POST", CHAT, "Transfer-Encoding: chunked"))
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    raw.send(chunk * (CAP_BYTES // 0x10000) + b"1\r\n \r\n")
    assert raw_http.refusal(raw.response()) == TOO_LARGE
    assert raw.is_hung_up()


@pytest.mark.parametrize("length", [CAP_BYTES + 1, 2**31, 2**63, 10**30])
def test_a_length_over_the_cap_is_refused_before_any_body_comes(raw: RawClient, length: int) -> None:
    assert raw_http.refusal(raw.ask(raw.head_of("POST", CHAT, f"Content-Length: {length}"))) == TOO_LARGE
    assert raw.is_hung_up()


# ---- what it costs


def _memory_bytes(pid: int, field: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024


@contextmanager
def growth_under(installation: Installation, limit_bytes: int) -> Iterator[None]:
    """Fails if the web process's memory peaks more than this above where it was."""
    pid = installation.processes["web"].pid
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew: proc(5)
    before_bytes = _memory_bytes(pid, "VmRSS")
    yield
    assert _memory_bytes(pid, "VmHWM") - before_bytes < limit_bytes


WORST = {
    "too deep": chat().ljust(CAP_BYTES - 200_000)[:-1] + b"[" * 100_000,
    "too many values": b'{"a":[' + b"0," * 4_000_000 + b"0]}",
    "as many values as allowed": b'{"model":5,"a":['
    + b",".join([b'{"a":"' + b"x" * 40 + b'"}'] * (caps.MAX_VALUES // 2 - 8))
    + b"]}",
    "a text": chat(messages=[{"role": "user", "content": "x" * (CAP_BYTES - 200)}], n=0),
    "a text of escapes": chat(messages=[{"role": "user", "content": "é" * (CAP_BYTES // 6 - 200)}], n=0),
    "a text that looks like JSON": chat(
        messages=[{"role": "user", "content": '[{",\\' * (CAP_BYTES // 7 - 200)}], n=0
    ),
}


@pytest.mark.parametrize("case", WORST)
def test_a_request_in_flight_costs_a_bounded_amount_of_memory(
    installation: Installation, suspect: Client, case: str
) -> None:
    """Each request may need twice the cap while it is received and joined, and the one that is parsed needs
    more.
    """
    in_flight = 4
    for _ in range(2):  # what an allocator keeps after the first time is not what a request costs
        suspect.send("POST", CHAT, WORST[case])
    with (
        growth_under(installation, (2 * in_flight + 3) * CAP_BYTES),
        ThreadPoolExecutor(in_flight) as threads,
    ):
        answers = list(threads.map(lambda _: suspect.send("POST", CHAT, WORST[case]), range(2 * in_flight)))
    assert {answer.status for answer in answers} <= {400, 413}


def test_many_announced_bodies_that_never_come_cost_little(
    installation: Installation, raw: RawClient
) -> None:
    """The 408 that ends them is tested in tests/chatapi/web/test_server.py, with a shorter time limit."""
    head = raw.head_of("POST", CHAT, f"Content-Length: {CAP_BYTES}")
    with growth_under(installation, 20 * MIB):
        stalled = [socket.create_connection(("127.0.0.1", installation.port)) for _ in range(200)]
        for each in stalled:
            each.sendall(head + b"{")
        assert Client(installation.url, installation.keys["live"]).complete("five").status == 200
    for each in stalled:
        each.close()


def test_what_was_refused_is_not_kept(installation: Installation, suspect: Client) -> None:
    """An allocator may return memory some rounds late; keeping one body of each round would take more."""
    after_bytes = []
    for _ in range(12):
        for body in WORST.values():
            suspect.send("POST", CHAT, body)
        after_bytes.append(_memory_bytes(installation.processes["web"].pid, "VmRSS"))
    assert min(after_bytes[9:]) - min(after_bytes[:3]) < 7 * CAP_BYTES, after_bytes
