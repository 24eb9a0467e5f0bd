"""What a client gets that sends another name of a model: answers with that name, and the model's receipt."""

import json
from typing import Any

import pytest

from chatapi.wire.dialects import DIALECTS
from tests.chatapi.http_client import HELLO, Client, clients_of
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MAKE = """
import json
from datetime import date
from accounts.keys import create_key, get_or_create_project
from accounts.models import RateLimit
from chatapi.models import ServedModel
ServedModel.objects.filter(pk="org/with-slash").update(
    aliases=["claude-haiku-4-5"], deprecated_on=date(2027, 6, 30))
project = get_or_create_project("Aliases", "default")
project.model_aliases = {"gpt-5.6": "org/with-slash", "text-embedding-3-small": "sandbox-embedding"}
project.save()
def key(name, **rights):
    return create_key(project, name=name, **rights)
limited, secret = key("limited")
RateLimit.objects.create(api_key=limited, model="org/with-slash", requests_per_day=1)
keys = {"free": key("free"), "model": key("model", allowed_models=["org/with-slash"]),
        "alias": key("alias", allowed_models=["gpt-5.6"]), "test": key("test", is_test=True)}
print(json.dumps({"limited": secret} | {name: secret for name, (_, secret) in keys.items()}))
"""


@pytest.fixture(scope="module")
def clients(installation: Installation) -> dict[str, Client]:
    clients = clients_of(installation, MAKE)
    wait_for(lambda: clients["free"].complete("gpt-5.6").headers["deprecation"] is not None, "the catalog")
    return clients


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_has_the_name_that_was_sent(
    clients: dict[str, Client], dialect: str, path: str, stream: bool
) -> None:
    client, name = clients["free"], "gpt-5.6" if stream else "claude-haiku-4-5"
    prompt = {"messages": HELLO} if path == "chat/completions" else {"prompt": "hello"}
    body = json.dumps({"model": name, "stream": stream} | prompt).encode()
    answer = client.send("POST", f"/{dialect}/v1/{path}", body)
    assert answer.status == 200, answer.body
    text = answer.body.decode()
    assert f'"model":"{name}"' in text
    assert "with-slash" not in text
    assert answer.headers["deprecation"] == "@1814313600"
    assert answer.headers["x-chatapi-warning"] == (
        "The model 'org/with-slash' is deprecated from 2027-06-30 on."
    )
    receipt = client.send("GET", f"/v1/generations/{answer.headers['x-generation-id']}").json
    assert (receipt["model"], receipt["requested_model"]) == ("org/with-slash", name)
    assert receipt["amount_nanodollars"] > 0
    again = client.send("GET", f"/{dialect}/v1/generations/{answer.headers['x-generation-id']}/stream")
    assert f'"model":"{name}"' in again.body.decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "prompt"),
    [("responses", {"input": "hello"}), ("messages", {"messages": HELLO, "max_tokens": 9})],
)
def test_so_it_is_in_other_protocols(
    clients: dict[str, Client], path: str, prompt: dict[str, Any], stream: bool
) -> None:
    body = json.dumps({"model": "claude-haiku-4-5", "stream": stream} | prompt).encode()
    answer = clients["free"].send("POST", f"/v1/{path}", body)
    assert answer.status == 200, answer.body
    assert b'"model":"claude-haiku-4-5"' in answer.body
    assert b"with-slash" not in answer.body
    assert answer.headers["deprecation"] == "@1814313600"
    receipt = clients["free"].send("GET", f"/v1/generations/{answer.headers['x-generation-id']}").json
    assert (receipt["model"], receipt["requested_model"]) == ("org/with-slash", "claude-haiku-4-5")


def test_so_it_is_for_embeddings(clients: dict[str, Client]) -> None:
    body = json.dumps({"model": "text-embedding-3-small", "input": "hello"}).encode()
    answer = clients["free"].send("POST", "/v1/embeddings", body)
    assert (answer.status, answer.json["model"]) == (200, "text-embedding-3-small")
    receipt = clients["free"].send("GET", f"/v1/generations/{answer.headers['x-generation-id']}").json
    assert receipt["model"] == "sandbox-embedding"


def test_a_test_key_gets_the_model_of_the_alias(clients: dict[str, Client]) -> None:
    answer = clients["test"].complete("gpt-5.6")
    assert (answer.status, answer.json["model"]) == (200, "gpt-5.6")


def test_rights_and_limits_of_a_model_hold_for_its_aliases(
    installation: Installation, clients: dict[str, Client], client: Client
) -> None:
    assert clients["model"].complete("gpt-5.6").status == 200
    refused = clients["alias"].complete("gpt-5.6")
    assert (refused.status, refused.error["code"]) == (403, "model_not_allowed")
    assert "'gpt-5.6'" in refused.error["message"]
    assert clients["limited"].complete("gpt-5.6").status == 200
    assert clients["limited"].complete("claude-haiku-4-5").status == 429
    to_count = json.dumps({"model": "claude-haiku-4-5", "messages": HELLO}).encode()
    assert clients["limited"].send("POST", "/v1/messages/count_tokens", to_count).status == 429
    unknown = client.complete("gpt-5.6")  # another project's name
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert client.complete("five").headers["deprecation"] is None
