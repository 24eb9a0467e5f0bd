"""IP addresses: of clients and proxies (`forwarding.py` finds that of a request), and of the Internet."""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# It reaches hosts by their IPv4 addresses (RFC 6052).
_NAT64: Final = ip_network("64:ff9b::/96")
# Azure's service for virtual machines, though its address is a public one.
_METADATA: Final = {ip_address("168.63.129.16")}


def is_trusted(peer: str, trusted_proxies: Sequence[str]) -> bool:
    """Return whether the peer is a trusted proxy, whose `X-Forwarded-…` headers count."""
    found = parsed(peer)
    return found is not None and any(found in each for each in _networks(tuple(trusted_proxies)))


def network_of(ip: str) -> str:
    """Return the smallest network of one client: an IPv4 address, or a /64 of IPv6 addresses (RFC 6177)."""
    found = parsed(ip)
    if isinstance(found, IPv6Address):
        return str(IPv6Network((int(found), 64), strict=False))
    return ip if found is None else str(found)


def is_ip(text: str) -> bool:
    return parsed(text) is not None


def is_ip_or_network(text: str) -> bool:
    """Return whether the text is an IP, or a network such as 10.0.0.0/8."""
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the Internet: not private, local, multicast or of metadata.

    It is asked before a request to a URL that people of organizations have entered.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:  # such as 2130706433, which the system takes for 127.0.0.1
        return False
    if isinstance(ip, IPv6Address):
        if ip in _NAT64:
            return is_public(str(IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip.ipv4_mapped:
            return is_public(str(ip.ipv4_mapped))
        if ip.sixtofour or ip.teredo or ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and ip not in _METADATA


# The setting's networks are parsed once, not for each request.
@lru_cache(maxsize=8)
def _networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


def parsed(text: str) -> Address | None:
    """Return the IP address, or None if the text is none; an IPv4 address that is mapped to IPv6 as IPv4."""
    try:
        found = ip_address(text.strip())
    except ValueError:
        return None
    # A socket for both versions shows an IPv4 client as ::ffff:192.0.2.1.
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
