"""The models that an organization is offered: priced and served ones, the sandbox's last or hidden."""

import re
from typing import Any

import pytest
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from chatapi.models import Deployment, ServedModel
from chatapi.pages import key_snippets
from tests.admin_pages import client_of, text
from tests.cast import PRICE, Person
from tests.chatapi.console_pages import url
from usage.books import prices

LISTED = ["mistral", "zephyr", "small", "tiny"]
"""Models with a server of their own, and those of the sandbox."""


@pytest.fixture
def served(small: ServedModel) -> None:
    """Serve two models by an upstream and two by the sandbox, and make three that cannot be called."""
    Deployment.objects.create(model=make("tiny", PRICE), name="sandbox", engine="sandbox")
    upstream = {"engine": "openai_compatible", "base_url": "http://127.0.0.1:9/v1"}
    for name in ("zephyr", "mistral"):
        Deployment.objects.create(model=make(name, PRICE), name="own", **upstream)
    # The sandbox may stand in for a server.
    Deployment.objects.create(model_id="mistral", name="stand-in", engine="sandbox", priority=1)
    Deployment.objects.create(model=make("no-price"), name="own", **upstream)
    make("no-server", PRICE)
    Deployment.objects.create(model=make("switched-off", PRICE), name="own", is_active=False, **upstream)


def make(name: str, price: Any = None) -> ServedModel:
    row = ServedModel.objects.create(id=name, context_window=40_960, max_output_tokens=3_072)
    if price is not None:
        prices.change(name, price)
    return row


def listed(client: Client, page: str) -> list[str]:
    """Return the models of the console's list."""
    return re.findall(
        r'<th scope="row"[^>]*><a href="[^"]*/models/([^"]+)"', client.get(page).content.decode()
    )


def options(client: Client, page: str, name: str) -> list[str]:
    """Return the choices of a select."""
    _, _, html = client.get(page).content.decode().partition(f'id="{name}"')
    found = re.findall(r"<option[^>]*>([^<]*)</option>", html.partition("</select>")[0])
    return [each for each in found if each not in ("none", "All models")]


def boxes(client: Client, page: str, name: str) -> list[str]:
    """Return the choices of a list of checkboxes."""
    html = client.get(page).content.decode()
    return re.findall(rf'<input[^>]*name="{name}"[^>]*value="([^"]+)"', html)


@pytest.mark.usefixtures("served")
def test_only_what_has_a_price_and_a_server_is_offered_the_sandbox_last(alice: Person) -> None:
    client = client_of(alice.user)
    assert listed(client, url(alice, "models")) == LISTED
    for name in ("model", "second"):
        assert options(client, url(alice, "playground"), name) == LISTED
    assert options(client, url(alice, "budgets/rate-limits/new"), "id_model") == LISTED
    assert boxes(client, url(alice, "keys/new"), "allowed_models") == LISTED
    for name in ("no-price", "no-server", "switched-off"):
        assert client.get(url(alice, f"models/{name}")).status_code == 404


@pytest.mark.usefixtures("served")
def test_one_setting_hides_the_sandbox_from_clients(alice: Person, settings: Any) -> None:
    settings.HIDE_SANDBOX_MODELS = True
    client, rest = client_of(alice.user), LISTED[:2]
    assert listed(client, url(alice, "models")) == rest
    for name in ("model", "second"):
        assert options(client, url(alice, "playground"), name) == rest
    assert boxes(client, url(alice, "keys/new"), "allowed_models") == rest
    assert client.get(url(alice, "models/small")).status_code == 404
    assert [each["id"] for each in alice.get("/v1/models").json()["data"]] == rest
    assert list(key_snippets.usable_models(alice.api_key).values()) == rest[:1]
    # A client that knows the name may go on using it.
    assert alice.get("/v1/models/small").json()["id"] == "small"


@pytest.mark.usefixtures("served")
def test_the_admin_has_the_sandbox_last(root: Client) -> None:
    everything = ["mistral", "no-price", "no-server", "switched-off", "zephyr", "small", "tiny"]
    assert boxes(root, "/admin/accounts/apikey/add/", "allowed_models") == everything
    assert options(root, "/admin/accounts/ratelimit/add/", "id_model") == everything
    assert options(root, "/admin/usage/price/add/", "id_model")[1:] == everything
    deployments = {"app_label": "chatapi", "model_name": "deployment", "field_name": "model"}
    assert [
        row["id"] for row in root.get("/admin/autocomplete/", deployments).json()["results"]
    ] == everything
    for query in ("", "?q=", "?is_active__exact=1"):
        rows = root.get(f"/admin/chatapi/servedmodel/{query}").context["cl"].result_list
        assert [row.pk for row in rows] == everything
    by_name = root.get("/admin/chatapi/servedmodel/?o=1").context["cl"].result_list
    assert [row.pk for row in by_name] == sorted(everything)


@pytest.mark.usefixtures("served")
def test_a_model_says_how_much_it_takes_and_answers(alice: Person) -> None:
    client = client_of(alice.user)
    assert "Context window 40,960 tokens Longest answer 3,072 tokens" in text(
        client.get(url(alice, "models/zephyr"))
    )
    assert re.search(r"zephyr chat 40,960 3,072", text(client.get(url(alice, "models"))))
