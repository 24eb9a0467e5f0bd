"""Checks the environment: settings, and the proxies in front of and behind this server."""

import ipaddress
import os
from collections.abc import Iterator

from django.conf import settings
from django.core import checks

from accounts import ip_addresses
from chatapi.checks import CHECK_TAG, MISSPELT
from chatapi.doctor.finding import Finding, ok, warning, wrong

# Variables with which other programs find a proxy for outgoing requests.
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_LOCAL_HOSTS = {"127.0.0.1", "localhost", "[::1]"}


def check_settings() -> Iterator[Finding]:
    """Yield what is wrong with the settings, misspelt names included."""
    problems = list(checks.run_checks(tags=[CHECK_TAG]))
    for problem in problems:
        yield wrong("settings", problem.msg, str(problem.hint))
    if settings.FAILPOINTS:
        yield wrong("settings", "CHATAPI_FAILPOINTS is set: processes kill themselves.", "Unset it.")
    if settings.DEBUG:
        yield warning("settings", "CHATAPI_DEBUG is on: error pages show the code to anyone.", "Unset it.")
    if not any(problem.id != MISSPELT for problem in problems):
        yield ok("settings", "All values are valid.")


def check_proxies() -> Iterator[Finding]:
    """Yield what is wrong with the proxies in front, and with those for outgoing requests."""
    valid = [proxy for proxy in settings.TRUSTED_PROXIES if ip_addresses.is_ip_or_network(proxy)]
    networks = [ipaddress.ip_network(proxy) for proxy in valid]
    if any(network.prefixlen == 0 for network in networks):
        yield wrong(
            "proxies",
            "CHATAPI_TRUSTED_PROXIES has all addresses: clients choose the address that limits count.",
            "List only the addresses of your proxies.",
        )
    elif networks:
        yield ok("proxies", f"{len(networks)} trusted: {', '.join(valid)}.")
    elif settings.SECURE_COOKIES or settings.CSRF_TRUSTED_ORIGINS:
        yield warning(
            "proxies",
            "There is HTTPS in front, but no trusted proxy: all clients share the limits of one address.",
            "Set CHATAPI_TRUSTED_PROXIES to the proxy's address.",
        )
    else:
        yield ok("proxies", "None is trusted: clients connect directly.")
    if not settings.SECURE_COOKIES and not _LOCAL_HOSTS.issuperset(settings.ALLOWED_HOSTS):
        yield warning(
            "proxies",
            "/admin/ opens under a public name, and its cookies are sent without HTTPS, too.",
            "Put HTTPS in front and set CHATAPI_SECURE_COOKIES=on.",
        )
    if used := [name for name in _PROXY_VARIABLES if os.environ.get(name) or os.environ.get(name.lower())]:
        yield warning(
            "proxies",
            f"{used[0]} is set, but upstreams are called directly.",
            "Allow direct connections from workers to upstreams, or give a relay's URL as base_url.",
        )
