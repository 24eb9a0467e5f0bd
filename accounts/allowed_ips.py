"""Lists of IP addresses and networks: from where a key may be used."""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

from django.core.exceptions import ValidationError

from accounts.ip_addresses import Network, parsed

MOST_ENTRIES = 32
_MAX_SHOWN_CHARS = 60


def entries(text: str) -> list[str]:
    """Return the entries of a text, which are separated by spaces, commas or line breaks."""
    return [each for each in re.split(r"[\s,]+", text) if each]


def normalized(listed: object) -> list[str]:
    """Return the list in the form in which it is stored: each address and network once, as `ipaddress` writes
    it. Raises `ValidationError` that names the wrong entry.
    """
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise ValidationError("This must be a list of IP addresses and networks.")
    if len(listed) > MOST_ENTRIES:
        raise ValidationError(f"There can be {MOST_ENTRIES} IP addresses and networks at most.")
    return list(dict.fromkeys(_text(_network(entry.strip())) for entry in listed))


def networks(stored: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of a stored list; an address is a network of its own."""
    return tuple(ip_network(each) for each in stored)


def allows(allowed: Sequence[Network], ip: str) -> bool:
    """Return whether the IP is in one of the networks; a text that is no IP is in none."""
    address = parsed(ip)
    return address is not None and any(address in each for each in allowed)


def covers(allowed: Sequence[Network], network: Network) -> bool:
    """Return whether the whole network is in one of the allowed ones."""
    return any(_is_within(network, each) for each in allowed)


def _is_within(network: Network, other: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)


def _network(entry: str) -> Network:
    shown = repr(entry[:_MAX_SHOWN_CHARS])
    try:
        found = ip_network(entry)
    except ValueError:
        try:
            meant = ip_network(entry, strict=False)
        except ValueError:
            message = f"{shown} is neither an IP address nor a network such as 203.0.113.0/24."
            raise ValidationError(message) from None
        # Both are likely, and the wrong guess would open the key to a whole network.
        message = f"{shown} is an address inside a network. Write {_text(meant)} for the network, or "
        raise ValidationError(f"{message}{entry.partition('/')[0]} for the address.") from None
    if isinstance(found, IPv6Network):
        if "%" in entry:
            raise ValidationError(f"{shown} has a zone, which only one machine knows.")
        mapped = found.network_address.ipv4_mapped
        if mapped is not None and found.prefixlen >= 96:
            return IPv4Network((int(mapped), found.prefixlen - 96))
    return found


def _text(network: Network) -> str:
    is_address = network.prefixlen == network.max_prefixlen
    return str(network.network_address if is_address else network)
