"""A stream is never silent for long: comments keep its connection open, from the first second on."""

from collections.abc import Iterator
from copy import copy

import pytest
from openai import OpenAI

from tests.chatapi.http_client import Client
from tests.installation import Installation, free_port

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def impatient(installation: Installation) -> Iterator[Installation]:
    """The same installation with a second web process, which pings after 200 ms."""
    impatient = copy(installation)
    impatient.port, impatient.processes = free_port(), {}
    impatient.environment = installation.environment | {"CHATAPI_PING_MS": "200"}
    try:
        impatient.start_web()
        yield impatient
    finally:
        impatient.stop()


@pytest.fixture
def client(impatient: Installation) -> Client:
    """A client of the process that pings."""
    return Client(impatient.url, impatient.keys["live"])


def events(client: Client, model: str) -> list[str]:
    """What a stream sends, cut where the events end."""
    answer = client.complete(model, stream=True)
    assert answer.status == 200
    *pieces, rest = answer.body.decode().split("\n\n")
    assert rest == ""
    assert all(piece == ": ping" or piece.startswith("data: ") for piece in pieces)
    return pieces


def test_pings_come_before_the_first_token(client: Client) -> None:
    pieces = events(client, "begins-late")
    assert pieces[0] == ": ping"
    assert pieces[-1] == "data: [DONE]"
    assert sum('"content"' in piece for piece in pieces) == 5


def test_pings_come_between_events_and_never_inside_one(client: Client) -> None:
    pieces = events(client, "three-then-silence")
    first_ping, last_ping = pieces.index(": ping"), len(pieces) - 1 - pieces[::-1].index(": ping")
    assert sum('"content"' in piece for piece in pieces[:first_ping]) == 3
    assert '"error"' in pieces[last_ping + 1]
    assert pieces[-1] == "data: [DONE]"


def test_after_a_ping_a_refusal_is_told_inside_the_stream(client: Client) -> None:
    *pings, failure, done = events(client, "refuses-late")
    assert set(pings) == {": ping"}
    assert '"code":"upstream_error"' in failure
    assert done == "data: [DONE]"


def test_an_answer_in_one_piece_is_waited_for_in_silence(client: Client) -> None:
    assert client.complete("begins-late").json["usage"]["completion_tokens"] == 5
    assert client.complete("refuses-late").status == 502


def test_openais_client_does_not_notice(impatient: Installation) -> None:
    with OpenAI(base_url=f"{impatient.url}/openai/v1", api_key=impatient.keys["live"], max_retries=0) as client:
        helper = client.chat.completions.stream(model="begins-late", messages=[{"role": "user", "content": "hello"}])
        with helper as stream:
            completion = stream.get_final_completion()
    assert completion.choices[0].message.content == " the of and to in"
