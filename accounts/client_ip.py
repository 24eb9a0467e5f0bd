"""The IP address of a request's client: the socket's peer, or the one that a trusted proxy names."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def of(peer: str, forwarded_for: str, trusted_proxies: Sequence[str]) -> str:
    """Return the nearest IP that is not a trusted proxy's.

    `forwarded_for` lists IPs; each proxy appended its peer.
    """
    if not trusted_proxies:
        return peer
    networks = _networks(tuple(trusted_proxies))
    nearest, named = peer, forwarded_for.split(",")
    # From the end, and only what a trusted proxy has appended: clients write what they like.
    while named and _is_in(nearest, networks) and _parsed(named[-1]) is not None:
        nearest = named.pop().strip()
    return nearest


def of_request(scope: Mapping[str, Any], trusted_proxies: Sequence[str]) -> str:
    """Return the client's IP of an ASGI scope."""
    peer, _ = scope["client"] or ("", None)
    forwarded_for = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
    # Latin-1 decodes any bytes, and an IP is ASCII.
    return of(peer, forwarded_for.decode("latin-1"), trusted_proxies)


def of_meta(meta: Mapping[str, Any], trusted_proxies: Sequence[str]) -> str:
    """Return the client's IP of a Django request's `META`."""
    return of(meta.get("REMOTE_ADDR") or "", meta.get("HTTP_X_FORWARDED_FOR", ""), trusted_proxies)


def is_trusted(peer: str, trusted_proxies: Sequence[str]) -> bool:
    """Return whether the peer is a trusted proxy, whose `X-Forwarded-…` headers count."""
    return _is_in(peer, _networks(tuple(trusted_proxies)))


def network_of(ip: str) -> str:
    """Return what one client has at least: an IPv4 address, or a /64 of IPv6 addresses (RFC 6177)."""
    found = _parsed(ip)
    if isinstance(found, IPv6Address):
        return str(IPv6Network((int(found), 64), strict=False))
    return ip if found is None else str(found)


def is_ip_or_network(text: str) -> bool:
    """Return whether the text is an IP, or a network such as 10.0.0.0/8."""
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


# The setting's networks are parsed once, not for each request.
@lru_cache(maxsize=8)
def _networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


def _is_in(ip: str, networks: Sequence[Network]) -> bool:
    found = _parsed(ip)
    return found is not None and any(found in each for each in networks)


def _parsed(text: str) -> Address | None:
    try:
        found = ip_address(text.strip())
    except ValueError:
        return None
    # A socket for both versions shows an IPv4 client as ::ffff:192.0.2.1.
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
