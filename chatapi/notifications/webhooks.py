"""Sends an event to an endpoint, signed with its secrets, by Standard Webhooks (standardwebhooks.com)."""

import asyncio
import base64
import errno
import hashlib
import hmac
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from accounts import encryption
from accounts.encryption import Purpose
from accounts.ip_addresses import is_public
from accounts.models import Organization
from chatapi.notifications.models import MAX_ANSWER_CHARS, MAX_URL_CHARS, WebhookEndpoint
from chatapi.notifications.queue import Attempt
from usage.models import Event

MAX_ENDPOINTS = 10
"""The most webhooks of one organization, and of the service."""
ROTATION = timedelta(days=1)
"""The time for which messages have signatures by the old secret, too."""
TIMEOUT_S = 15.0
# Threads for name lookups, which may last for half a minute each; uvloop's own runs two at a time.
_NAME_THREADS = ThreadPoolExecutor(128, thread_name_prefix="names")
_PREFIX, _SECRET_BYTES = "whsec_", 32
SECRETS_LOST = "The secret can't be decrypted: it was made under another CHATAPI_SECRET_KEY. Rotate it."


class RefusedAddress(OSError):
    """The host of a URL has an IP address to which no message may go."""


def url_mistake(url: str) -> str | None:
    """Return the mistake in an endpoint's URL, or None. Its host is looked up only to send a message."""
    schemes = ("http", "https") if settings.WEBHOOK_PRIVATE_ADDRESSES else ("https",)
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or len(url) > MAX_URL_CHARS or not url.isprintable() or " " in url:
        return (
            f"Use a URL such as {schemes[-1]}://example.com/webhooks, of at most {MAX_URL_CHARS} characters."
        )
    if parts.username or parts.password or parts.fragment:
        return "The URL must have no user, password or fragment: the signature says who sends."
    return None


def add(endpoint: WebhookEndpoint) -> str | None:
    """Save a new endpoint, and return its secret; None if its owner has as many as it may."""
    with transaction.atomic():
        # Locked, so that two additions at once do not exceed the bound. The service has no row; its endpoints
        # stand for it: near the bound there are some.
        owner: QuerySet[Any] = (
            WebhookEndpoint.objects.filter(organization=None)
            if endpoint.organization_id is None
            else Organization.objects.filter(pk=endpoint.organization_id)
        )
        list(owner.order_by("pk").select_for_update(no_key=True).values_list("pk"))
        if is_full(endpoint.organization_id):
            return None
        endpoint.save()  # the secret is encrypted for this row
        secret = _set_secret(endpoint)
        endpoint.save(update_fields=["encrypted_secret"])
    return secret


def is_full(organization_id: int | None) -> bool:
    """Return whether the organization, or the service, has as many endpoints as it may."""
    return WebhookEndpoint.objects.filter(organization=organization_id).count() >= MAX_ENDPOINTS


def _set_secret(endpoint: WebhookEndpoint) -> str:
    """Set a new secret of a saved endpoint, without saving it, and return it."""
    secret = f"{_PREFIX}{base64.b64encode(os.urandom(_SECRET_BYTES)).decode()}"
    endpoint.encrypted_secret = encryption.encrypt(Purpose.WEBHOOK_SECRETS, _place(endpoint), secret.encode())
    return secret


def secret_id(endpoint: WebhookEndpoint) -> str:
    """Return an id of the secret, which reveals nothing of it."""
    return hashlib.sha256(bytes(endpoint.encrypted_secret)).hexdigest()[:16]


def rotate(endpoint: WebhookEndpoint, now: datetime, current_id: str) -> str | None:
    """Replace the secret, and return the new one; messages are also signed with the old one for a day.

    Returns None and changes nothing if the secret with the id `current_id` was replaced already: a second
    rotation would end the secret that receivers have.
    """
    with transaction.atomic():
        locked = WebhookEndpoint.objects.select_for_update().filter(pk=endpoint.pk).first()
        if locked is None or secret_id(locked) != current_id:
            return None
        endpoint.previous_encrypted_secret = locked.encrypted_secret
        endpoint.previous_expires_at = now + ROTATION
        secret = _set_secret(endpoint)
        columns = ["encrypted_secret", "previous_encrypted_secret", "previous_expires_at"]
        endpoint.save(update_fields=columns)
    return secret


def _secrets(endpoint: WebhookEndpoint, now: datetime) -> list[bytes]:
    """Return the keys that sign now, the newest first, without those that can't be decrypted."""
    stored = [endpoint.encrypted_secret]
    if endpoint.previous_expires_at is not None and endpoint.previous_expires_at > now:
        stored.append(endpoint.previous_encrypted_secret or b"")
    texts = [
        encryption.decrypt(Purpose.WEBHOOK_SECRETS, _place(endpoint), bytes(encrypted))
        for encrypted in stored
    ]
    return [base64.b64decode(text.removeprefix(_PREFIX.encode())) for text in texts if text]


def _place(endpoint: WebhookEndpoint) -> bytes:
    return str(endpoint.pk).encode()


def payload(event: Event) -> bytes:
    """Return the body of an event's message, which is the same in each attempt."""
    owner = {} if event.organization_id is None else {"organization_id": str(event.organization_id)}
    body = {"type": event.kind, "timestamp": event.created_at.isoformat(), "data": owner | event.data}
    return json.dumps(body, sort_keys=True).encode()


def headers(event: Event, body: bytes, secrets: list[bytes], now: datetime) -> dict[str, str]:
    """Return the headers of Standard Webhooks, with a signature by each secret."""
    timestamp = str(int(now.timestamp()))
    signed = b".".join([event.webhook_id.encode(), timestamp.encode(), body])
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in secrets]
    return {
        "content-type": "application/json",
        "user-agent": "chatapi",
        "webhook-id": event.webhook_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def new_session() -> aiohttp.ClientSession:
    """Return a session without cookies, proxies and a DNS cache, with a new connection for each message."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            resolver=_Resolver(),
            use_dns_cache=False,
            force_close=True,
            socket_factory=_socket_to_public,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        auto_decompress=False,
        trust_env=False,
    )


class _Resolver(AbstractResolver):
    """Looks up names in its own threads, so that slow lookups do not delay others."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        look_up = partial(
            socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        found = await asyncio.get_running_loop().run_in_executor(_NAME_THREADS, look_up)
        return [
            ResolveResult(
                hostname=host, host=str(place[0]), port=port, family=each, proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for each, _, protocol, _, place in found
        ]  # fmt: skip

    async def close(self) -> None:
        """Do nothing: the threads live as long as the process."""


def _socket_to_public(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket for a connection to the address; raises `RefusedAddress`.

    The address is the one that the connection will use, so a name that resolves to another address a moment
    later can't get around this check.
    """
    family, kind, protocol, _, place = address
    if not settings.WEBHOOK_PRIVATE_ADDRESSES and not is_public(str(place[0])):
        # Without the address: endpoints' owners must not learn how names resolve inside this network.
        raise RefusedAddress(errno.EACCES, "not a public address")
    return socket.socket(family, kind, protocol)


async def send(
    session: aiohttp.ClientSession, endpoint: WebhookEndpoint, event: Event, now: datetime
) -> Attempt:
    """Send the event once; redirects are not followed."""
    body, secrets, began = payload(event), _secrets(endpoint, now), time.monotonic()
    if not secrets:
        return Attempt(0, error=SECRETS_LOST)
    status, answer, error = None, "", url_mistake(endpoint.url) or ""
    try:
        if not error:
            async with session.post(
                endpoint.url, data=body, headers=headers(event, body, secrets, now), allow_redirects=False
            ) as response:
                status = response.status
                # The rest is not read: the connection is closed.
                answer = (await response.content.read(MAX_ANSWER_CHARS)).decode(errors="replace")
    except TimeoutError:
        error = f"no answer within {TIMEOUT_S:.0f} s"
    # The texts of these two exceptions have the whole URL, which may be a secret.
    except aiohttp.ClientResponseError:
        error = "the answer is not HTTP"
    except aiohttp.InvalidURL as exception:
        error = exception.description or "the URL can't be called"
    except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as exception:
        error = str(exception) or type(exception).__name__
    if status is not None:
        # The receiver has the event, even if reading its answer failed.
        error = "" if 200 <= status < 300 else f"status {status}"
    return Attempt(round((time.monotonic() - began) * 1_000), status, answer.replace("\0", ""), error)
