"""Which part of a large body the application asks for, piece by piece as a server hands it over."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.fixtures import Settings

from accounts.models import RateLimit
from chatapi.asgi import application
from chatapi.web import validation
from chatapi.web.body_room import LEAST_BYTES
from chatapi.web.refused_bytes import RefusedBytes
from chatapi.web.services import Services
from chatapi.wire.invalid_request import UnresolvedReferences
from tests.cast import Person
from tests.chatapi.web.exchange_by_hand import Client as ByHand

pytestmark = pytest.mark.django_db(transaction=True)

PIECE = b"x" * 65_536
PIECES = 128
CHAT = "/v1/chat/completions"


class Upload:
    """One request with a body of 8 MiB, driven by hand."""

    def __init__(
        self,
        path: str,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        *,
        is_announced: bool = True,
    ) -> None:
        named = {"host": "localhost", "content-type": "application/json", **(headers or {})}
        named |= (
            {"content-length": str(len(PIECE) * PIECES)} if is_announced else {"transfer-encoding": "chunked"}
        )
        path, _, query = path.partition("?")
        self.scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("192.0.2.7", 1),
            "server": ("localhost", 80),
        }
        self.pieces_read = 0
        self.status = 0
        self.body = b""

    async def send(self) -> "Upload":
        """Answers itself, once the request is answered."""
        await application(self.scope, self._receive, self._send)  # type: ignore[arg-type]
        return self

    @property
    def refusal(self) -> tuple[int, str]:
        """Return status and code."""
        return self.status, json.loads(self.body)["error"]["code"]

    async def _receive(self) -> dict[str, Any]:
        if self.pieces_read == PIECES:
            await asyncio.Event().wait()
        self.pieces_read += 1
        return {"type": "http.request", "body": PIECE, "more_body": self.pieces_read < PIECES}

    async def _send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


def bearer(person: Person) -> dict[str, str]:
    return {"authorization": f"Bearer {person.key}"}


@pytest.mark.usefixtures("services")
@pytest.mark.parametrize("is_announced", [True, False], ids=["length", "chunked"])
@pytest.mark.parametrize(
    ("path", "method"),
    [
        (CHAT, "POST"),
        ("/v1/completions", "POST"),
        ("/llama/v1/chat/completions/tickets", "POST"),
        ("/v1/generations/x/stream", "GET"),
        ("/v1/generations/x/cancel", "POST"),
        (f"{CHAT}?ticket=x", "GET"),
        ("/v1/models", "GET"),
        ("/v1/organization/costs", "GET"),
        ("/admin/login/", "POST"),
        ("/admin/catalog/import", "POST"),
        ("/nowhere", "PUT"),
    ],
)
async def test_of_a_strangers_body_the_first_pieces_are_all_that_is_read(
    path: str, method: str, is_announced: bool
) -> None:
    upload = await Upload(
        path, method, {"authorization": "Bearer x", "cookie": "sessionid=x"}, is_announced=is_announced
    ).send()
    assert upload.refusal in {(401, "invalid_api_key"), (413, "request_too_large")}
    assert upload.pieces_read <= 2


@pytest.mark.usefixtures("services")
async def test_errors_in_the_head_are_sent_before_the_body_is_read(alice: Person) -> None:
    authorization = bearer(alice)
    wrong = await Upload(CHAT, "POST", authorization | {"content-type": "text/plain"}).send()
    assert (wrong.refusal, wrong.pieces_read) == ((415, "unsupported_media_type"), 1)
    wrong = await Upload(CHAT, "PUT", authorization).send()
    assert (wrong.refusal, wrong.pieces_read) == ((405, "method_not_allowed"), 1)
    wrong = await Upload(CHAT, "POST", authorization | {"x-chatapi-dialect": "dream"}).send()
    assert (wrong.refusal, wrong.pieces_read) == ((400, "unknown_dialect"), 1)


async def test_the_body_of_a_key_over_its_limit_is_not_read(alice: Person, services: Services) -> None:
    await services.commits.read(
        lambda: RateLimit.objects.create(api_key=alice.api_key, requests_per_minute=1)
    )
    first = await Upload(CHAT, "POST", bearer(alice)).send()
    assert (first.refusal, first.pieces_read) == ((400, "invalid_json"), PIECES)
    await asyncio.gather(*services._background)  # it is counted
    second = await Upload(CHAT, "POST", bearer(alice)).send()
    assert (second.refusal, second.pieces_read) == ((429, "rate_limit_exceeded"), 1)


async def test_the_body_of_a_key_of_which_too_much_was_refused_is_not_read(
    alice: Person, services: Services
) -> None:
    services.refused_bytes = RefusedBytes(64 * 1024 * 1024)
    services.refused_bytes.add(alice.api_key.pk, 65 * 1024 * 1024)
    upload = await Upload(CHAT, "POST", bearer(alice)).send()
    assert (upload.refusal, upload.pieces_read) == ((429, "rate_limit_exceeded"), 1)


async def test_a_body_beyond_the_cap_is_not_read_to_its_end(
    alice: Person, services: Services, settings: Settings
) -> None:
    settings.MAX_BODY_BYTES = 10 * len(PIECE)
    announced = await Upload(CHAT, "POST", bearer(alice)).send()
    assert (announced.refusal, announced.pieces_read) == ((413, "request_too_large"), 1)
    chunked = await Upload(CHAT, "POST", bearer(alice), is_announced=False).send()
    assert (chunked.refusal, chunked.pieces_read) == ((413, "request_too_large"), 11)
    assert not services.room._room._held_units


async def test_a_body_waits_unread_for_room_and_gives_it_back(alice: Person, services: Services) -> None:
    taken = [await services.room.acquire(alice.project.organization_id, 8 * 1024 * 1024) for _ in range(2)]
    upload = Upload(CHAT, "POST", bearer(alice))
    sending = asyncio.create_task(upload.send())
    async with asyncio.timeout(10):
        while not services.room._room._waiting:
            await asyncio.sleep(0.01)
    assert upload.pieces_read == 1
    for room in taken:
        room.release()
    assert ((await sending).refusal, upload.pieces_read) == ((400, "invalid_json"), PIECES)
    assert not services.room._room._held_units


@pytest.mark.parametrize("is_large", [False, True])
async def test_what_a_body_refers_to_is_kept_only_when_there_is_room_for_it(
    alice: Person, services: Services, is_large: bool
) -> None:
    held_units = services.room._room._held_units
    held = []

    async def resolve(*_: object) -> list[bytes]:
        held.append(held_units.total())
        return [bytes(3 * LEAST_BYTES)]

    caller = await services.commits.read(lambda: alice.caller)
    exchange = ByHand().exchange("responses")
    exchange.kind = replace(exchange.kind, resolve=resolve)
    room = await validation._take_room(exchange, services, caller, 1) if is_large else None
    references = UnresolvedReferences(None, {})
    room, pieces = await validation._resolve(exchange, services, caller, references, [b"{}"], room)
    assert room is not None
    assert held == [LEAST_BYTES, 3 * LEAST_BYTES]
    assert held_units.total() == room.units == sum(map(len, pieces))
    room.release()


async def test_a_signed_in_person_may_send_a_large_form(services: Services) -> None:
    cookie = await services.commits.read(_sign_in)
    headers = {"cookie": f"sessionid={cookie}", "content-type": "application/x-www-form-urlencoded"}
    upload = await Upload("/admin/catalog/import", "POST", headers).send()
    assert upload.pieces_read == PIECES
    assert upload.status in {400, 403}, "Django's own limit for forms, or its check of the form's token"
    assert not services.room._room._held_units
    assert (await Upload("/v1/models", "POST", headers).send()).refusal == (413, "request_too_large")


def _sign_in() -> str:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return str(client.cookies["sessionid"].value)
