"""Reads the client's IP, scheme, host and certificate from the headers of trusted proxies.

Proxies send `X-Forwarded-For`, `-Proto` and `-Host`, or `Forwarded` (RFC 7239). Each proxy appends its values
at the end; the client may have written all values before them. `Forwarded` counts only in a request
without any `X-Forwarded-…`: a proxy that writes one kind passes on the other as its client has sent it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.conf import settings
from django.http import HttpRequest

from accounts import ip_addresses

SCHEMES = ("http", "https")
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PAIR = re.compile(rf"\s*({_WORD})=(?:({_WORD})|\"((?:[^\"\\]|\\.)*)\")\s*([;,]|$)")
# RFC 7239, section 6: an IPv6 address is in brackets, and either may have a port.
_NODE = re.compile(r"\[([^\]]+)\](?::\w+)?|([0-9.]+)(?::\w+)?")


class Forwarded(NamedTuple):
    """The IP, scheme and host of a request's client."""

    ip: str
    """The nearest IP that is not a trusted proxy's."""
    scheme: str = ""
    """`http` or `https`; empty if no trusted proxy reports it."""
    host: str = ""
    """The host as a trusted proxy reports it, not validated; empty if none does."""


def of(peer: str, headers: Iterable[tuple[bytes, bytes]], trusted_proxies: Sequence[str]) -> Forwarded:
    """Return the client that the proxies name; `headers` have their names in lower case."""
    if not trusted_proxies or not ip_addresses.is_trusted(peer, trusted_proxies):
        return Forwarded(peer)
    sent: dict[bytes, str] = {}
    for name, value in headers:
        if name.startswith(b"x-forwarded-") or name == b"forwarded":
            # Latin-1 decodes any bytes; all that counts is ASCII.
            text = value.decode("latin-1")
            sent[name] = f"{sent[name]},{text}" if name in sent else text
    forwarded = sent.pop(b"forwarded", "")
    if not sent:
        elements = _elements(forwarded)
        ip, count = _walk(peer, [_node(each.get("for", "")) for each in elements], trusted_proxies)
        said = elements[-count] if elements else {}
        return Forwarded(ip, _scheme(said.get("proto", "")), said.get("host", ""))
    addresses, schemes, hosts = (
        [each.strip() for each in sent.get(b"x-forwarded-" + name, "").split(",")]
        for name in (b"for", b"proto", b"host")
    )
    ip, count = _walk(peer, addresses, trusted_proxies)
    # In a list of another length, a proxy has written its own value in place of others, or none: then only
    # the last one is surely a proxy's.
    scheme, host = (
        values[-count] if len(values) == len(addresses) else values[-1] for values in (schemes, hosts)
    )
    return Forwarded(ip, _scheme(scheme), host)


def of_scope(scope: Mapping[str, Any], trusted_proxies: Sequence[str]) -> Forwarded:
    peer, _ = scope.get("client") or ("", None)
    return of(peer, scope["headers"], trusted_proxies)


def of_meta(meta: Mapping[str, Any], trusted_proxies: Sequence[str]) -> Forwarded:
    headers = (
        (name.removeprefix("HTTP_").replace("_", "-").lower().encode(), value.encode("latin-1", "replace"))
        for name, value in meta.items()
        if name.startswith(("HTTP_X_FORWARDED_", "HTTP_FORWARDED"))
    )
    return of(meta.get("REMOTE_ADDR") or "", headers, trusted_proxies)


def client_ip(request: HttpRequest) -> str | None:
    """Return the client's IP, an IPv4 address as IPv4; None if it has none, as on a UNIX socket."""
    found = ip_addresses.parsed(of_meta(request.META, settings.TRUSTED_PROXIES).ip)
    return None if found is None else str(found)


def client_network(request: HttpRequest) -> str:
    """Return the client's network, by which attempts are counted: its IPv4 address or IPv6 /64."""
    return ip_addresses.network_of(of_meta(request.META, settings.TRUSTED_PROXIES).ip)


def client_certificate(peer: str, sent: str) -> str | None:
    """Return the header in which the nearest proxy passes on the client's certificate; empty if the client
    has none. None if the peer is no trusted proxy, or no setting names the header: then anyone can have
    written it.
    """
    is_proxys = settings.CLIENT_CERTIFICATE_HEADER and ip_addresses.is_trusted(peer, settings.TRUSTED_PROXIES)
    return sent if is_proxys else None


def client_certificate_of_meta(meta: Mapping[str, Any]) -> str | None:
    name = f"HTTP_{settings.CLIENT_CERTIFICATE_HEADER.upper().replace('-', '_')}"
    return client_certificate(meta.get("REMOTE_ADDR") or "", meta.get(name, ""))


def _walk(peer: str, named: Sequence[str], trusted_proxies: Sequence[str]) -> tuple[str, int]:
    """Return the client's IP, and how many of the entries, from the end, are the words of trusted proxies."""
    nearest, count = peer, 0
    while count < len(named) and ip_addresses.is_trusted(nearest, trusted_proxies):
        count += 1
        if not ip_addresses.is_ip(named[-count]):
            break
        nearest = named[-count]
    return nearest, max(count, 1)


def _elements(header: str) -> Sequence[Mapping[str, str]]:
    """Return each proxy's words by parameter; nothing if the header is not well formed, as a whole."""
    elements: list[dict[str, str]] = [{}]
    at = 0
    while at < len(header):
        found = _PAIR.match(header, at)
        name = found[1].lower() if found else ""
        if found is None or name in elements[-1]:
            return ()
        elements[-1][name] = found[2] or re.sub(r"\\(.)", r"\1", found[3] or "")
        at = found.end()
        if found[4] == ",":
            elements.append({})
    return elements if elements[-1] else ()


def _node(text: str) -> str:
    """Return the IP of a node; empty for `unknown` and names that hide it."""
    found = _NODE.fullmatch(text)
    return (found[1] or found[2]) if found else ""


def _scheme(text: str) -> str:
    return text.lower() if text.lower() in SCHEMES else ""
