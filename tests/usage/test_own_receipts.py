"""What people of organizations do not see of a request: which worker ran it, and which deployment
answered.
"""

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User

import chatapi.urls  # noqa: F401  it loads the admin's pages
from tests.admin_pages import client_of, text
from tests.cast import Person, admit, run
from usage.books import ledger
from usage.books.settlement import Attempt
from usage.database.clock import database_now
from usage.models import Generation, Outcome
from usage.pages.live import difference, snapshot
from usage.pricing import FREE

SECRETS = ("azure-east-7", "worker-1")


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.WORKER_LOST, Outcome.FAILED])
def test_a_receipt_tells_operators_what_ran_it_and_nobody_else(alice: Person, outcome: Outcome) -> None:
    row = run(alice, deployment="azure-east-7", outcome=outcome)
    for path in (f"/admin/requests/{row}", f"/admin/usage/generation/{row.pk}/change/"):
        own, operators = (
            client_of(user).get(path).content.decode()
            for user in (alice.user, User.objects.create_superuser(path))
        )
        assert [secret in own for secret in SECRETS] == [False, False]
        assert [secret in operators for secret in SECRETS] == [True, True]
        assert "Attempts" in own


def test_the_attempts_are_shown_without_their_deployments(alice: Person) -> None:
    log = [Attempt("azure-east-7", "upstream_timeout", 61_000), Attempt("azure-west-2", "", 90)]
    row = run(alice, deployment="azure-west-2", attempts=2, attempt_log=log)
    pages = [
        client_of(user).get(f"/admin/requests/{row}").content.decode()
        for user in (alice.user, User.objects.create_superuser("root"))
    ]
    for hidden in ("azure-east-7", "azure-west-2"):
        assert [hidden in page for page in pages] == [False, True]
    for shown in ("upstream_timeout", "1 min"):
        assert [shown in page for page in pages] == [True, True]


def test_a_page_says_which_model_was_asked_for_and_which_one_answered(alice: Person) -> None:
    other = ledger.Candidate("large", "large", 1_000, None, FREE)
    log = [
        Attempt("azure-east-7", "upstream_timeout", 61_000, 0, "small"),
        Attempt("spare", "", 9, 9, "large"),
    ]
    row = run(alice, fallback=other, deployment="spare", attempts=2, attempt_log=log)
    console = f"/console/{alice.project.organization_id}/requests/{row}"
    for path in (f"/admin/requests/{row}", console):
        page = text(client_of(alice.user).get(path))
        assert "Model large Requested small (it could not answer)" in page
        assert "Fallbacks large" in page
        assert "1 small upstream_timeout 0 ms 1 min 1 s 2 large none 9 ms 9 ms" in page
        assert "azure-east-7" not in page
    assert "large for small" in text(client_of(alice.user).get("/admin/requests/"))
    receipt = alice.get(f"/v1/generations/{row}").json()
    assert (receipt["model"], receipt["requested_model"], receipt["is_fallback"]) == ("large", "small", True)
    assert receipt["attempts"] == [
        {"model": "small", "error": "upstream_timeout", "duration_ms": 61_000},
        {"model": "large", "error": None, "duration_ms": 9},
    ]


def test_a_log_of_an_older_worker_has_no_models(alice: Person) -> None:
    row = run(
        alice, attempts=2, attempt_log=[Attempt("gone", "upstream_timeout", 3), Attempt("there", "", 9)]
    )
    old = [{name: value for name, value in each.items() if name != "model"} for each in row.attempt_log or ()]
    Generation.objects.filter(pk=row.pk).update(attempt_log=old)
    assert [each["model"] for each in alice.get(f"/v1/generations/{row}").json()["attempts"]] == [None, None]
    assert client_of(alice.user).get(f"/admin/requests/{row}").status_code == 200


def test_the_api_tells_a_key_no_more_than_a_person(alice: Person) -> None:
    row = run(alice, deployment="azure-east-7")
    answer = alice.get(f"/v1/generations/{row}").content.decode()
    assert not any(secret in answer for secret in SECRETS)


def read(answer: Any) -> str:
    """Return the content of a streamed file."""

    async def gather() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return async_to_sync(gather)().decode()


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_an_export_of_requests_has_what_its_reader_may_know(alice: Person, form: str) -> None:
    run(alice, deployment="azure-east-7")
    files = {}
    for name, user in (("own", alice.user), ("operators", User.objects.create_superuser("root"))):
        files[name] = read(client_of(user).get(f"/admin/requests/export.{form}"))
    assert "deployment" not in files["own"]
    assert "azure-east-7" in files["operators"]
    assert "attempts" in files["own"]


@pytest.mark.parametrize(
    "query", ["deployment=azure-east-7", "deployment__startswith=a", "worker=worker-1", "worker__contains=1"]
)
def test_nothing_is_found_by_what_ran_it(alice: Person, query: str) -> None:
    run(alice, deployment="azure-east-7")
    client = client_of(alice.user)
    assert client.get(f"/admin/usage/generation/?{query}").status_code in {302, 400}
    listed = [
        client.get(f"/admin/requests/?{text}").content.decode().count('<td class="time">')
        for text in (query, f"{query}x")
    ]
    assert listed[0] == listed[1], "the address asks for nothing by these names"


@pytest.fixture
def running(alice: Person) -> Generation:
    """Return a running request with a heartbeat."""
    row = admit(alice)
    ledger.claim(database_now(), [ledger.Claim(row.pk, "worker-1", 6_000)])
    ledger.beat(
        database_now(), [ledger.Beat("worker-1", [ledger.Pulse(row.pk, 1, 5, "azure-east-7")], 6_000)]
    )
    return row


def test_the_live_feed_names_neither_worker_nor_deployment(alice: Person, running: Generation) -> None:
    (found,) = json.loads(difference({}, snapshot({}), 0))["rows"]
    assert found["state"] == "running"
    shown = json.dumps(found) + client_of(alice.user).get("/admin/live/").content.decode()
    assert not any(secret in shown for secret in SECRETS)


def test_what_still_runs_tells_only_operators_where(alice: Person, running: Generation) -> None:
    own, operators = client_of(alice.user), client_of(User.objects.create_superuser("root"))
    shown = [
        own.get(f"/admin/{path}").content.decode()
        for path in (f"requests/{running}", f"usage/generation/{running.pk}/change/")
    ]
    shown += [
        read(own.get("/admin/requests/export.csv")),
        alice.get(f"/v1/generations/{running}").content.decode(),
    ]
    assert not any(secret in page for secret in SECRETS for page in shown)
    assert all(secret in operators.get(f"/admin/requests/{running}").content.decode() for secret in SECRETS)
    assert "azure-east-7" in read(operators.get("/admin/requests/export.csv?deployment=azure-east-7"))
