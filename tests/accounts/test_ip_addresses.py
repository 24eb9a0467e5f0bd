"""The part of an address that counts as one client."""

import pytest

from accounts import ip_addresses


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
    assert ip_addresses.network_of(address) == expected
