"""The names that an upstream lists, for a deployment's form: people who may ask, what is sent, mistakes."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from chatapi import upstream_keys
from chatapi.models import Deployment, ServedModel
from chatapi.worker.engines import model_names
from tests.admin_pages import client_of, page
from tests.cast import Person

ASK = "/admin/deployments/upstream-models"
LISTED = json.dumps({"object": "list", "data": [{"id": "b", "owned_by": "me"}, {"id": "A"}, {"id": "b"}]})


@dataclass
class Lister:
    """An upstream that answers everything alike, and notes what it was sent."""

    url: str = ""
    status: int = 200
    body: bytes = LISTED.encode()
    wait_s: float = 0.0
    location: str = ""
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def lister() -> Iterator[Lister]:
    lister = Lister()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lister.calls.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            time.sleep(lister.wait_s)
            self.send_response(lister.status)
            if lister.location:
                self.send_header("location", lister.location)
            self.send_header("content-length", str(len(lister.body)))
            self.end_headers()
            self.wfile.write(lister.body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    lister.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield lister
    server.shutdown()
    thread.join()
    server.server_close()


def ask(client: Client, lister: Lister, **changes: Any) -> Any:
    sent = {"engine": "openai_compatible", "base_url": lister.url, "api_key": "", **changes}
    response = client.post(ASK, sent)
    assert response.status_code == 200, response.content
    return response.json()


def test_the_names_are_sorted_and_the_entered_key_is_sent(root: Client, lister: Lister) -> None:
    assert ask(root, lister, api_key="sk-typed") == {"names": ["A", "b"]}
    assert ask(root, lister, base_url=f"{lister.url}/") == {"names": ["A", "b"]}
    (path, headers), (other, without) = lister.calls
    assert (path, other) == ("/v1/models", "/v1/models")
    assert headers["authorization"] == "Bearer sk-typed"
    assert "authorization" not in without


def test_anthropic_gets_its_own_headers_and_sends_its_longest_list(root: Client, lister: Lister) -> None:
    lister.body = b'{"data": [{"type": "model", "id": "claude-haiku-4-5"}], "has_more": false}'
    assert ask(root, lister, engine="anthropic", api_key="sk-ant") == {"names": ["claude-haiku-4-5"]}
    [(path, headers)] = lister.calls
    assert path == "/v1/models?limit=1000"
    assert (headers["x-api-key"], "authorization" in headers) == ("sk-ant", False)
    assert headers["anthropic-version"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"status": 401}, "It wants a key (401). Enter the key in “API key”."),
        ({"status": 404}, "It has no list of models (404). Does the base URL end in /v1?"),
        ({"status": 500, "body": b"secrets of a traceback"}, "It answers with the status 500."),
        ({"body": b"<html>"}, "Its answer is no list of models. Does the base URL end in /v1?"),
        (
            {"body": b'{"data": [{"name": "x"}]}'},
            "Its answer is no list of models. Does the base URL end in /v1?",
        ),
        ({"body": b"\xff"}, "Its answer is no list of models. Does the base URL end in /v1?"),
        ({"body": b'{"object": "list", "data": null}'}, "It lists no models."),
        ({"body": b'{"data": [{"id": ""}, {"id": "a\\nb"}]}'}, "It lists no models."),
        ({"body": b"[" * (5 << 20)}, "Its list is larger than 4 MiB."),
        ({"wait_s": 1.0}, "It did not answer within 0 seconds."),
    ],
)
def test_each_mistake_is_one_line(
    root: Client, lister: Lister, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], says: str
) -> None:
    if "wait_s" in answer:
        monkeypatch.setattr(model_names, "TIMEOUT_S", 0.2)
    for name, value in answer.items():
        setattr(lister, name, value)
    assert ask(root, lister) == {"error": says}


def test_a_redirect_gets_no_key(root: Client, lister: Lister) -> None:
    lister.status, lister.location = 307, "/elsewhere"
    error = ask(root, lister, api_key="sk-typed")["error"]
    assert error == "It redirects (307), which is not followed. Enter the URL to which it leads."
    assert [path for path, _ in lister.calls] == ["/v1/models"]


def test_an_upstream_that_is_not_there_and_a_host_that_is_none(root: Client, lister: Lister) -> None:
    for url in ("http://127.0.0.1:1/v1", f"http://{'a' * 70}.example/v1"):
        error = ask(root, lister, base_url=url)["error"]
        assert error == "There is no answer. Is it running, and can this server reach it?"


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"base_url": ""}, "must be a URL such as"),
        ({"base_url": "file:///etc/passwd"}, "must be a URL such as"),
        ({"base_url": "http://me:secret@127.0.0.1/v1"}, "must have no user, password"),
        ({"engine": "sandbox"}, "The sandbox has no upstream."),
        ({"engine": "none"}, "Choose the engine"),
        ({"api_key": "sk typed"}, "a key without spaces"),
    ],
)
def test_what_is_no_upstream_is_not_asked(root: Client, lister: Lister, sent: Any, says: str) -> None:
    error = ask(root, lister, **sent)["error"]
    assert says in error
    assert "sk typed" not in error
    assert lister.calls == []


def test_a_long_list_is_cut(root: Client, lister: Lister, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_names, "MAX_NAMES", 3)
    lister.body = json.dumps({"data": [{"id": f"m{number}"} for number in range(9)]}).encode()
    assert ask(root, lister)["names"] == ["m0", "m1", "m2"]


def test_a_saved_key_goes_only_to_the_saved_url(root: Client, small: ServedModel, lister: Lister) -> None:
    row = Deployment.objects.create(
        model=small, name="one", engine="openai_compatible", base_url=f"{lister.url}/saved"
    )
    upstream_keys.enter(row, "sk-saved")
    assert f'data-deployment="{row.pk}"' in root.get(page(row)).content.decode()
    ask(root, lister, base_url=row.base_url, deployment=row.pk)
    ask(root, lister, deployment=row.pk)
    ask(root, lister, base_url=row.base_url, engine="anthropic", deployment=row.pk)
    ask(root, lister, base_url=row.base_url, deployment=row.pk, api_key="sk-typed")
    saved, *others, typed = [headers.get("authorization", "") for _, headers in lister.calls]
    assert (saved, others, typed) == ("Bearer sk-saved", ["", ""], "Bearer sk-typed")


def test_a_variable_that_the_web_process_lacks_is_named_as_the_reason(
    root: Client, small: ServedModel, lister: Lister
) -> None:
    row = Deployment.objects.create(
        model=small, name="one", engine="openai_compatible", base_url=lister.url, api_key_env="NOT_SET_HERE"
    )
    assert "does not have the deployment's key" in ask(root, lister, deployment=row.pk)["error"]


def test_only_people_who_may_add_or_change_deployments_ask(alice: Person, lister: Lister) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    assert client_of(clerk).post(ASK, {"engine": "anthropic", "base_url": lister.url}).status_code == 403
    assert client_of(alice.user).post(ASK, {"base_url": lister.url}).status_code == 403
    clerk.user_permissions.add(Permission.objects.get(codename="add_deployment"))
    assert ask(client_of(clerk), lister)["names"] == ["A", "b"]
    assert len(lister.calls) == 1


def test_the_forms_of_a_deployment_and_of_a_new_model_have_the_button(root: Client, db: None) -> None:
    for path in ("/admin/chatapi/deployment/add/", "/admin/chatapi/servedmodel/add/"):
        html = root.get(path).content.decode()
        assert "List its models" in html
        assert "chatapi/upstream_models.js" in html
