"""Whose word counts about where a client is: the socket's, and that of proxies that are trusted."""

import pytest

from accounts import client_ip

PROXIES = ["10.0.0.0/8", "192.0.2.7", "2001:db8:1::/48"]


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
    assert client_ip.of(peer, forwarded_for, PROXIES) == expected


def test_without_trusted_proxies_only_the_socket_counts() -> None:
    assert client_ip.of("10.1.2.3", "198.51.100.1", []) == "10.1.2.3"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("203.0.113.5", "203.0.113.5"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("a socket", "a socket"),
    ],
)
def test_one_client_has_an_ipv4_address_or_a_64(address: str, expected: str) -> None:
    assert client_ip.network_of(address) == expected
