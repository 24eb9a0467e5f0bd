"""A client's address, scheme and host are those of the socket, or those that a trusted proxy names."""

import pytest

from accounts import forwarding
from accounts.forwarding import Forwarded

PROXIES = ["10.0.0.0/8", "192.0.2.7", "2001:db8:1::/48"]
PROXY, CLIENT = "10.1.2.3", "198.51.100.1"


def said(peer: str, **headers: str) -> Forwarded:
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return forwarding.of(peer, named, PROXIES)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "expected"),
    [
        ("203.0.113.5", "", "203.0.113.5"),
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),  # anybody can write this
        ("10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("10.1.2.3", "1.1.1.1, 198.51.100.1", "198.51.100.1"),  # the first is what the client wrote itself
        ("10.1.2.3", "198.51.100.1, 10.9.9.9,192.0.2.7", "198.51.100.1"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "unknown", "10.1.2.3"),
        ("10.1.2.3", "unknown, 10.9.9.9", "10.9.9.9"),
        ("::ffff:10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("2001:db8:1::5", "2001:db8:ffff::1", "2001:db8:ffff::1"),
        ("", "198.51.100.1", ""),
    ],
)
def test_the_nearest_that_is_no_trusted_proxy(peer: str, forwarded_for: str, expected: str) -> None:
    assert said(peer, x_forwarded_for=forwarded_for).ip == expected


def test_without_trusted_proxies_only_the_socket_counts() -> None:
    headers = [(b"x-forwarded-for", CLIENT.encode()), (b"x-forwarded-host", b"chat.example.com")]
    assert forwarding.of(PROXY, headers, []) == Forwarded(PROXY)
    assert forwarding.of("203.0.113.5", headers, PROXIES) == Forwarded("203.0.113.5")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x_forwarded_proto": "https"}, Forwarded(PROXY, "https")),
        (
            {"x_forwarded_proto": "HTTPS", "x_forwarded_host": "a:8443"},
            Forwarded(PROXY, "https", "a:8443"),
        ),
        ({"x_forwarded_proto": "javascript"}, Forwarded(PROXY)),
        # The proxy has appended its words to the client's.
        (
            {
                "x_forwarded_for": f"1.1.1.1, {CLIENT}",
                "x_forwarded_proto": "http, https",
                "x_forwarded_host": "evil.example, a.example",
            },
            Forwarded(CLIENT, "https", "a.example"),
        ),
        # The outer proxy has appended host and scheme, the inner one an address only.
        (
            {
                "x_forwarded_for": f"1.1.1.1, {CLIENT}, 10.9.9.9",
                "x_forwarded_proto": "http, https",
                "x_forwarded_host": "evil.example, a.example",
            },
            Forwarded(CLIENT, "https", "a.example"),
        ),
        # Two proxies, each of which has appended its words.
        (
            {
                "x_forwarded_for": f"1.1.1.1, {CLIENT}, 10.9.9.9",
                "x_forwarded_proto": "http, https, http",
                "x_forwarded_host": "evil.example, a.example, inner",
            },
            Forwarded(CLIENT, "https", "a.example"),
        ),
        # Two proxies; the first has replaced the scheme and the host, and the second has kept them.
        (
            {
                "x_forwarded_for": f"{CLIENT}, 10.9.9.9",
                "x_forwarded_proto": "https",
                "x_forwarded_host": "a.example",
            },
            Forwarded(CLIENT, "https", "a.example"),
        ),
    ],
)
def test_x_forwarded(headers: dict[str, str], expected: Forwarded) -> None:
    assert said(PROXY, **headers) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"for={CLIENT};proto=https;host=a.example", Forwarded(CLIENT, "https", "a.example")),
        (f'For="{CLIENT}:4711" ; Proto="HTTPS";by=_x', Forwarded(CLIENT, "https")),
        ('for="[2001:db8::1]:4711";host="a.example:8443"', Forwarded("2001:db8::1", "", "a.example:8443")),
        ('for="[2001:db8::1]"', Forwarded("2001:db8::1")),
        ("for=unknown;proto=https", Forwarded(PROXY, "https")),
        ("for=_hidden;host=a.example", Forwarded(PROXY, "", "a.example")),
        # What the client has written itself, before the proxy's words.
        (f"for=1.1.1.1;host=evil.example, for={CLIENT};host=a.example", Forwarded(CLIENT, "", "a.example")),
        (f"for=1.1.1.1;host=evil.example, for={CLIENT}", Forwarded(CLIENT)),
        # Two proxies.
        (
            f"host=evil.example, for={CLIENT};proto=https;host=a.example, for=10.9.9.9;proto=http;host=inner",
            Forwarded(CLIENT, "https", "a.example"),
        ),
        (
            "host=evil.example, for=_x;host=a.example, for=10.9.9.9;host=inner",
            Forwarded("10.9.9.9", "", "a.example"),
        ),
        ("", Forwarded(PROXY)),
        # Not well formed: nothing of it counts, for a client may have written the beginning.
        (f'for="1.1.1.1, for={CLIENT};host=a.example', Forwarded(PROXY)),
        (f"for=1.1.1.1;for={CLIENT}", Forwarded(PROXY)),
        (f"nonsense, for={CLIENT}", Forwarded(PROXY)),
        ('host="a.example, for="[2001:db8::1]";host=b.example', Forwarded(PROXY)),
        (f"for={CLIENT},", Forwarded(PROXY)),
    ],
)
def test_forwarded(header: str, expected: Forwarded) -> None:
    assert said(PROXY, forwarded=header) == expected


@pytest.mark.parametrize("name", ["x_forwarded_for", "x_forwarded_proto", "x_forwarded_port"])
def test_forwarded_counts_only_alone(name: str) -> None:
    """A proxy that writes `X-Forwarded-…` passes on a `Forwarded` that its client has invented."""
    found = said(PROXY, **{name: "https"}, forwarded="for=1.1.1.1;proto=https;host=evil.example")
    assert (found.ip, found.host) == (PROXY, "")


def test_repeated_headers_are_one_list() -> None:
    headers = [
        (b"forwarded", b"for=1.1.1.1;host=evil"),
        (b"forwarded", b"for=198.51.100.1;proto=https"),
    ]
    assert forwarding.of(PROXY, headers, PROXIES) == Forwarded(CLIENT, "https")
    headers = [(b"x-forwarded-for", b"1.1.1.1"), (b"x-forwarded-for", b"198.51.100.1")]
    assert forwarding.of(PROXY, headers, PROXIES) == Forwarded(CLIENT)


def test_a_long_header_costs_little() -> None:
    for header in ('for="' + "\\" * 15_000, "for=1;" * 2_500, ("a=" + "b" * 7_000 + " ") * 2, " " * 15_000):
        assert said(PROXY, forwarded=header) == Forwarded(PROXY)
