"""Webhooks go to public addresses only, whatever the URL and the name's addresses are."""

import socket
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from accounts.ip_addresses import is_public
from chatapi.notifications import webhooks
from chatapi.notifications.models import DeliveryAttempt
from tests.cast import Person
from tests.chatapi.notifications.conftest import Deliver, endpoint_of, write_event
from tests.webhook_receiver import Receiver
from usage.database.clock import database_now

HOSTS = [
    "127.0.0.1",
    "localhost",
    "2130706433",
    "0x7f.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "0.0.0.0",
    "rebinding.test",
]


@pytest.mark.parametrize("host", HOSTS)
def test_no_message_goes_to_this_machine(
    settings: Settings, alice: Person, receiver: Receiver, deliver: Deliver, host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    resolve = socket.getaddrinfo

    def rebinding(name: str, *rest: Any, **more: Any) -> Any:
        return resolve("127.0.0.1" if name == "rebinding.test" else name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    settings.WEBHOOK_PRIVATE_ADDRESSES = False
    endpoint_of(alice, receiver.url.replace("127.0.0.1", host).replace("http:", "https:"))
    write_event(alice, now := database_now())
    assert deliver(now) == 1
    attempt = DeliveryAttempt.objects.get()
    assert attempt.status is None
    # aiohttp refuses such a number by itself.
    assert "[not a public address]" in attempt.error or "not a canonical IPv4 address" in attempt.error
    assert receiver.messages == []


def test_plain_http_is_refused_when_it_is_sent_too(
    settings: Settings, alice: Person, receiver: Receiver, deliver: Deliver
) -> None:
    settings.WEBHOOK_PRIVATE_ADDRESSES = False
    endpoint_of(alice, receiver.url)
    write_event(alice, now := database_now())
    deliver(now)
    assert DeliveryAttempt.objects.get().error.startswith("Use a URL such as https://")
    assert receiver.messages == []


NOT_PUBLIC = """
    10.0.0.1 172.16.0.1 192.168.1.1 127.0.0.1 127.8.8.8 0.0.0.0 169.254.169.254 100.100.100.200 224.0.0.1
    239.1.1.1 240.0.0.1 255.255.255.255 168.63.129.16 192.0.0.192 198.18.0.1 192.0.2.1 ::1 :: fe80::1
    fe80::1%eth0 fd00:ec2::254 ff02::1 ::ffff:10.0.0.1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 2002:7f00:1::
    2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1 ::127.0.0.1 fec0::1
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_addresses_of_no_public_host_are_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(address)


GOOD_URLS = ["https://example.com/hooks?x=1", "https://example.com:8443"]
BAD_URLS = [
    "http://example.com",
    "https://",
    "ftp://example.com",
    "https://bob:pw@example.com",
    "https://example.com/#x",
    "https://example.com:0",
    "https://example.com:x",
    "https://example.com/a b",
    "https://example.com/" + "x" * 500,
    "example.com",
]


@pytest.mark.parametrize("url", [*GOOD_URLS, *BAD_URLS])
def test_a_url_is_checked_before_it_is_stored(url: str) -> None:
    assert (webhooks.url_mistake(url) is None) == (url in GOOD_URLS)
