"""Which IP addresses are of the Internet, for requests to URLs that people of organizations enter."""

import ipaddress

# It reaches hosts by their IPv4 addresses (RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Azure's service for virtual machines, though its address is a public one.
_METADATA = {ipaddress.ip_address("168.63.129.16")}


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the Internet: not private, local, multicast or of metadata."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # such as 2130706433, which the system takes for 127.0.0.1
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip.ipv4_mapped:
            return is_public(str(ip.ipv4_mapped))
        if ip.sixtofour or ip.teredo or ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and ip not in _METADATA
