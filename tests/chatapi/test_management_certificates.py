"""Certificates of authorities in the management API: objects, activation, and what locks nobody out."""

import json
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from accounts import certificates
from accounts.models import Certificate, Project
from tests.cast import Person
from tests.chatapi.management import HERE
from tests.client_certificates import HEADER, PROXY, make

CA, OTHER = make("authority"), make("another authority")
LEAF = CA.issue()
PATH = f"{HERE}/certificates"


@pytest.fixture(autouse=True)
def proxy(settings: Settings) -> None:
    settings.CLIENT_CERTIFICATE_HEADER, settings.TRUSTED_PROXIES = HEADER, [PROXY]


def ask(
    person: Person, method: str, path: str, body: Any = None, status: int = 200, sent: str = LEAF.header
) -> Any:
    """Return the answer to a request that comes through the proxy with this certificate."""
    headers = {"authorization": f"Bearer {person.key}", HEADER: sent}
    data = b"" if body is None else json.dumps(body).encode()
    answer = Client(REMOTE_ADDR=PROXY).generic(method, path, data, "application/json", headers=headers)
    assert answer.status_code == status, answer.content
    return json.loads(answer.content)


def upload(person: Person, pem: str = CA.pem, **more: str) -> Any:
    return ask(person, "POST", PATH, {"certificate": pem, **more})


def test_a_certificate_is_uploaded_shown_renamed_and_deleted(boss: Person) -> None:
    made = upload(boss, name="office")
    assert (made["object"], made["name"]) == ("certificate", "office")
    assert "active" not in made
    details = made["certificate_details"]
    assert details["valid_at"] == int(CA.certificate.not_valid_before_utc.timestamp())
    assert details["expires_at"] == int(CA.certificate.not_valid_after_utc.timestamp())
    assert "content" not in details
    path = f"{PATH}/{made['id']}"
    assert ask(boss, "GET", path) == made
    shown = ask(boss, "GET", f"{path}?include[]=content")
    assert shown["certificate_details"]["content"] == CA.pem
    assert ask(boss, "POST", path, {"name": "home"})["name"] == "home"
    assert ask(boss, "POST", path, {})["name"] == "home"
    assert ask(boss, "DELETE", path) == {"object": "certificate.deleted", "deleted": True, "id": made["id"]}
    assert ask(boss, "GET", path, status=404)["error"]["param"] == "certificate_id"
    assert upload(boss)["name"] is None


def test_lists_have_pages_and_the_state_of_their_place(boss: Person, bob: Person) -> None:
    ids = [upload(boss, each.pem)["id"] for each in (CA, OTHER)]
    ask(boss, "POST", f"{PATH}/activate", {"certificate_ids": ids[:1]})
    of_project = f"{HERE}/projects/{bob.project.pk}/certificates"
    ask(boss, "POST", f"{of_project}/activate", {"certificate_ids": ids[1:]})
    page = ask(boss, "GET", f"{PATH}?limit=1")
    assert (page["last_id"], page["has_more"]) == (ids[1], True)
    rest = ask(boss, "GET", f"{PATH}?limit=1&after={ids[1]}")
    assert ([each["id"] for each in rest["data"]], rest["has_more"]) == (ids[:1], False)
    states = {
        path: [(each["object"], each["active"]) for each in ask(boss, "GET", f"{path}?order=asc")["data"]]
        for path in (PATH, of_project)
    }
    assert states[PATH] == [("organization.certificate", True), ("organization.certificate", False)]
    kind = "organization.project.certificate"
    assert states[of_project] == [(kind, False), (kind, True)]


@pytest.mark.parametrize("place", ["organization", "project"])
def test_activation_is_idempotent_and_is_in_the_audit_log(boss: Person, bob: Person, place: str) -> None:
    ids = [upload(boss, each.pem)["id"] for each in (CA, OTHER)]
    path, kind = PATH, "organization.certificate"
    if place == "project":
        path, kind = f"{HERE}/projects/{bob.project.pk}/certificates", "organization.project.certificate"
    for verb, is_active in (("activate", True), ("deactivate", False)):
        for _ in range(2):
            answer = ask(boss, "POST", f"{path}/{verb}", {"certificate_ids": [*ids, ids[0]]})
            assert answer["object"] == f"{kind}.{verb[:-1]}ion"
            assert [(each["id"], each["active"]) for each in answer["data"]] == [
                (each, is_active) for each in ids
            ]
    logs = ask(boss, "GET", f"{HERE}/audit_logs?resource_ids={ids[0]}")["data"]
    assert [each["type"] for each in logs] == [
        "certificates.deactivated", "certificates.activated", "certificate.created",
    ]  # fmt: skip
    assert logs[0]["certificates.deactivated"]["id"] == ids[0]
    assert logs[0]["actor"]["type"] == "api_key"
    asked = ask(boss, "GET", f"{HERE}/audit_logs?event_types=certificates.activated")["data"]
    assert len(asked) == 2
    assert ask(boss, "GET", f"{HERE}/audit_logs?event_types=certificate.activated")["data"] == []


def test_a_change_that_would_refuse_its_own_key_is_refused_whole(boss: Person, bob: Person) -> None:
    mine, others = (upload(boss, each.pem)["id"] for each in (CA, OTHER))
    for sent, words in (("", "none was sent"), (OTHER.issue().header, "has issued the one that was sent")):
        refused = ask(boss, "POST", f"{PATH}/activate", {"certificate_ids": [mine]}, 400, sent)["error"]
        assert refused["param"] == "certificate_ids"
        assert "the calling key would need another client certificate" in refused["message"]
        assert words in refused["message"]
    assert not Certificate.objects.filter(is_active=True).exists()
    assert ask(boss, "GET", f"{HERE}/audit_logs?event_types=certificates.activated")["data"] == []
    # Bob's project is not that of the key.
    of_project = f"{HERE}/projects/{bob.project.pk}/certificates/activate"
    ask(boss, "POST", of_project, {"certificate_ids": [others]}, sent="")
    of_own = f"{HERE}/projects/{boss.project.pk}/certificates/activate"
    ask(boss, "POST", of_own, {"certificate_ids": [others]}, 400)
    ask(boss, "POST", f"{PATH}/activate", {"certificate_ids": [mine, others]})
    ask(boss, "POST", f"{PATH}/deactivate", {"certificate_ids": [mine]}, 400)
    ask(boss, "POST", f"{PATH}/deactivate", {"certificate_ids": [others]})
    ask(boss, "GET", PATH, status=401, sent="")
    ask(boss, "POST", f"{PATH}/deactivate", {"certificate_ids": [mine]})
    ask(boss, "GET", PATH, sent="")


@pytest.mark.parametrize(
    ("request_of", "body", "status", "param"),
    [
        ("POST certificates", {}, 400, "certificate"),
        ("POST certificates", {"certificate": "garbage"}, 400, "certificate"),
        ("POST certificates", {"certificate": "x" * 20_000}, 400, "certificate"),
        ("POST certificates", {"certificate": 7}, 400, "certificate"),
        ("POST certificates", {"certificate": LEAF.pem}, 400, "certificate"),
        ("POST certificates", {"certificate": CA.pem}, 400, "certificate"),
        ("POST certificates", {"certificate": OTHER.pem, "name": "a/b"}, 400, "name"),
        ("POST certificates", {"content": OTHER.pem}, 400, "content"),
        ("POST certificates/{id}", {"certificate": OTHER.pem}, 400, "certificate"),
        ("POST certificates/{id}", {"name": ""}, 400, "name"),
        ("GET certificates/{id}?include[]=key", None, 400, "include[0]"),
        ("GET certificates?after=7", None, 400, "after"),
        ("GET certificates?order=up", None, 400, "order"),
        ("POST certificates/activate", {}, 400, "certificate_ids"),
        ("POST certificates/activate", {"certificate_ids": []}, 400, "certificate_ids"),
        ("POST certificates/activate", {"certificate_ids": ["7"]}, 400, "certificate_ids[0]"),
        ("POST certificates/activate", {"certificate_ids": ["{id}"] * 11}, 400, "certificate_ids"),
        ("POST certificates/activate", {"certificate_ids": ["{id}", "cert_9999999"]}, 404, "certificate_ids"),
        ("POST projects/{theirs}/certificates/activate", {"certificate_ids": ["{id}"]}, 404, "project_id"),
        ("GET certificates/7", None, 404, "certificate_id"),
    ],
)
def test_a_wrong_request_names_the_parameter(
    boss: Person, charlie: Person, request_of: str, body: Any, status: int, param: str
) -> None:
    ids = {"id": upload(boss)["id"], "theirs": charlie.project.pk}
    method, path = request_of.split(" ")
    sent = json.loads(json.dumps(body).replace("{id}", str(ids["id"])))
    error = ask(boss, method, f"{HERE}/{path.format(**ids)}", sent, status)["error"]
    assert error["param"] == param
    assert Certificate.objects.count() == 1
    assert not Certificate.objects.filter(is_active=True).exists()


def test_certificates_of_others_are_unknown(boss: Person, charlie: Person) -> None:
    theirs = certificates.create(charlie.project.organization_id, CA.pem, "canary")
    own = upload(boss)["id"]
    for path in (PATH, f"{HERE}/projects/{boss.project.pk}/certificates"):
        assert [each["id"] for each in ask(boss, "GET", path)["data"]] == [own]
        for verb in ("activate", "deactivate"):
            ids = {"certificate_ids": [own, f"cert_{theirs.pk}"]}
            assert ask(boss, "POST", f"{path}/{verb}", ids, 404)["error"]["param"] == "certificate_ids"
    for method in ("GET", "POST", "DELETE"):
        ask(boss, method, f"{PATH}/cert_{theirs.pk}", {}, 404)
    assert not Certificate.objects.filter(is_active=True).exists()
    assert not Project.objects.filter(certificates__isnull=False).exists()


def test_an_active_one_is_not_deleted(boss: Person) -> None:
    row = upload(boss)["id"]
    ask(boss, "POST", f"{PATH}/activate", {"certificate_ids": [row]})
    assert "Deactivate it first" in ask(boss, "DELETE", f"{PATH}/{row}", status=400)["error"]["message"]


def test_an_archived_project_is_not_changed(boss: Person, bob: Person) -> None:
    row = upload(boss)["id"]
    Project.objects.filter(pk=bob.project.pk).update(is_active=False)
    path = f"{HERE}/projects/{bob.project.pk}/certificates"
    assert ask(boss, "POST", f"{path}/activate", {"certificate_ids": [row]}, 400)["error"]["code"] == (
        "project_archived"
    )
    assert not ask(boss, "GET", path)["data"][0]["active"]


def test_one_of_an_archived_project_is_deactivated_and_deleted(boss: Person, bob: Person) -> None:
    row = upload(boss)["id"]
    path = f"{HERE}/projects/{bob.project.pk}/certificates"
    ask(boss, "POST", f"{path}/activate", {"certificate_ids": [row]})
    Project.objects.filter(pk=bob.project.pk).update(is_active=False)
    ask(boss, "DELETE", f"{PATH}/{row}", status=400)
    ask(boss, "POST", f"{path}/deactivate", {"certificate_ids": [row]})
    assert ask(boss, "DELETE", f"{PATH}/{row}")["deleted"]


def test_nothing_is_activated_without_the_operators_settings(boss: Person, settings: Settings) -> None:
    row = upload(boss)["id"]
    settings.CLIENT_CERTIFICATE_HEADER = ""
    error = ask(boss, "POST", f"{PATH}/activate", {"certificate_ids": [row]}, 400)["error"]
    assert "CHATAPI_CLIENT_CERTIFICATE_HEADER" in error["message"]
