"""A key's rights on the hot routes: what it lacks is a 403 that says so; and its two secrets while it is
rotated.
"""

import json

import pytest
from django.conf import settings

from accounts.models import KeyScope
from chatapi.wire.dialects import DIALECTS
from tests.bad_input.bodies import CHAT, EMBEDDINGS, POSTED, TEXT, TICKETS, body_for, refusal
from tests.chatapi.http_client import HELLO, Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

RECEIPT = "/v1/generations/chatcmpl-0192f0c57e7a7cc398c4dc0c0c07398f"
HOT = {
    ("POST", CHAT): KeyScope.COMPLETIONS,
    ("POST", TEXT): KeyScope.COMPLETIONS,
    ("POST", TICKETS): KeyScope.COMPLETIONS,
    ("GET", f"{RECEIPT}/stream"): KeyScope.GENERATIONS,
    ("POST", f"{RECEIPT}/cancel"): KeyScope.GENERATIONS,
}
MAKE = """
import json
from accounts.keys import create_key, get_or_create_project
from accounts.models import KeyScope
project = get_or_create_project("Tests", "default")
rights = {scope: {"scopes": [scope]} for scope in KeyScope.values}
rights |= {"five": {"allowed_models": ["five", "retired"]}}
rights |= {"first": {}, "second": {}, "third": {}, "fourth": {}}
print(json.dumps({name: create_key(project, name=name, **each)[1] for name, each in rights.items()}))
"""
ROTATE = """
from datetime import timedelta
from django.utils import timezone
from accounts import keys
from accounts.models import APIKey
print(keys.rotate(APIKey.objects.get(public={public!r}), timezone.now() + timedelta(hours=1)))
"""
NARROW = "from accounts.models import APIKey; APIKey.objects.filter(public={public!r}).update({changes})"


@pytest.fixture(scope="module")
def made(installation: Installation) -> dict[str, str]:
    """Return keys by name: one for each scope, one for the model "five", and some that tests change once."""
    made: dict[str, str] = json.loads(installation.shell(MAKE))
    return made


@pytest.fixture
def narrow(installation: Installation, made: dict[str, str]) -> dict[str, Client]:
    """Return the clients of those keys."""
    return {name: Client(installation.url, secret) for name, secret in made.items()}


@pytest.mark.parametrize(("method", "path"), HOT)
def test_a_hot_route_wants_its_scope(narrow: dict[str, Client], method: str, path: str) -> None:
    body = body_for(path) if path in POSTED else None
    for scope in KeyScope.values:
        answer = narrow[scope].send(method, path, body)
        if scope == HOT[method, path]:
            assert answer.status in {200, 201, 404}
        else:
            assert refusal(answer) == (403, "permission_denied", None)
            assert (
                answer.error["message"]
                == f"This API key may not do this: it lacks the scope '{HOT[method, path]}'."
            )


@pytest.mark.parametrize("dialect", ["", *DIALECTS])
@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("model", ["steady", "no-such-model"])
def test_a_model_that_is_not_on_the_list_is_refused(
    narrow: dict[str, Client], dialect: str, path: str, model: str
) -> None:
    """The refusal is the same for an existing model and for an unknown one."""
    prompt = {TEXT: {"prompt": "hello"}, EMBEDDINGS: {"input": "hello"}}.get(path, {"messages": HELLO})
    body = json.dumps({"model": model, "stream": True} | prompt).encode()
    answer = narrow["five"].send("POST", f"/{dialect}{path}" if dialect else path, body)
    assert refusal(answer) == (403, "model_not_allowed", "model")


def test_a_model_on_the_list_is_used_and_one_that_is_gone_is_not_found(narrow: dict[str, Client]) -> None:
    assert narrow["five"].complete("five").status == 200
    assert refusal(narrow["five"].complete("retired")) == (404, "model_not_found", "model")


def test_a_request_that_names_no_model_asks_for_the_default_one(narrow: dict[str, Client]) -> None:
    assert settings.DEFAULT_MODEL != "five"
    answer = narrow["five"].send(
        "POST", "/llama/v1/chat/completions", json.dumps({"messages": HELLO}).encode()
    )
    assert refusal(answer) == (403, "model_not_allowed", "model")


@pytest.mark.parametrize(
    ("name", "changes"), [("first", "scopes=['models']"), ("second", "allowed_models=['steady']")]
)
def test_a_ticket_gives_no_more_than_its_key_has_when_it_is_used(
    installation: Installation, made: dict[str, str], name: str, changes: str
) -> None:
    client = Client(installation.url, made[name])
    url = client.send("POST", TICKETS, body_for(CHAT)).json["url"]
    installation.shell(NARROW.format(public=made[name].split("_")[2], changes=changes))
    assert client.send("GET", url).status == 403


def test_both_secrets_of_a_rotated_key_work_at_once(installation: Installation, made: dict[str, str]) -> None:
    old = made["third"]
    assert Client(installation.url, old).complete("five").status == 200
    new = installation.shell(ROTATE.format(public=old.split("_")[2]))
    answers = [Client(installation.url, key).send("GET", "/v1/key").json for key in (old, new)]
    assert answers[0] == answers[1]
    assert Client(installation.url, new).complete("five").status == 200
    assert Client(installation.url, old).complete("five").status == 200


def test_narrowing_a_key_holds_within_a_second(installation: Installation, made: dict[str, str]) -> None:
    client = Client(installation.url, made["fourth"])
    assert client.complete("five").status == 200
    installation.shell(
        NARROW.format(public=made["fourth"].split("_")[2], changes="allowed_models=['steady']")
    )
    wait_for(lambda: client.complete("five").status == 403, "the key to be narrowed", timeout_s=3)
