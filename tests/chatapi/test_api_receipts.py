"""The receipts of generations, at `/v1/generations/{id}`."""

import re

import pytest

from chatapi import identity
from chatapi.models import ServedModel
from tests.cast import Person, admit, run
from tests.chatapi.envelopes import PREFIXES, RANDOM_ID, error
from usage.books import prices
from usage.models import Generation, LedgerEntry, Outcome, UsageSource
from usage.pricing import FREE, Tokens


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_receipt_tells_what_was_charged(alice: Person, prefix: str) -> None:
    generation = run(alice)
    body = alice.get(f"{prefix}/v1/generations/{generation}").json()
    assert (body["id"], body["object"], body["model"]) == (
        f"chatcmpl-{generation.id.hex}",
        "generation",
        "small",
    )
    assert (body["state"], body["outcome"], body["finish_reason"], body["error"]) == (
        "settled",
        "completed",
        "stop",
        None,
    )
    assert body["usage_source"] == "upstream"
    assert body["usage"] == {
        "prompt_tokens": 1_000,
        "completion_tokens": 200,
        "total_tokens": 1_200,
        "prompt_tokens_details": {"cached_tokens": 400},
    }
    assert (body["amount_nanodollars"], body["amount_usd"], body["is_waived"]) == (240_000, "0.00024", False)
    assert "deployment" not in body


def test_the_line_items_add_up(alice: Person) -> None:
    body = alice.get(f"/v1/generations/{run(alice)}").json()
    lines = [
        (line["name"], line["tokens"], line["price_per_mtok_usd"], line["amount_usd"])
        for line in body["line_items"]
    ]
    assert lines == [
        ("input", 600, "0.15", "0.00009"),
        ("cached_input", 400, "0.075", "0.00003"),
        ("output", 200, "0.6", "0.00012"),
    ]
    assert sum(line["amount_nanodollars"] for line in body["line_items"]) == body["amount_nanodollars"]


def test_a_receipt_keeps_the_price_of_its_day(alice: Person, small: ServedModel) -> None:
    generation = run(alice)
    before = alice.get(f"/v1/generations/{generation}").json()
    prices.change(small.id, FREE)
    assert alice.get(f"/v1/generations/{generation}").json() == before


def test_a_receipt_has_its_times(alice: Person) -> None:
    timings = alice.get(f"/v1/generations/{run(alice)}").json()["timings"]
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", timings[name])
        for name in ("admitted_at", "claimed_at", "settled_at")
    )
    assert timings["admitted_at"] <= timings["claimed_at"] <= timings["settled_at"]
    assert (timings["first_token_ms"], timings["last_token_ms"]) == (40, 900)
    assert 0 <= timings["queue_ms"] <= timings["total_ms"]


def test_a_waived_generation_costs_nothing_and_has_no_lines(alice: Person) -> None:
    ending = {
        "outcome": Outcome.FAILED,
        "error_code": "upstream_timeout",
        "error_message": "It took too long.",
        "finish_reason": "",
    }
    body = alice.get(
        f"/v1/generations/{run(alice, tokens=Tokens(1_000), usage_source=UsageSource.COUNTED, **ending)}"
    ).json()
    assert body["error"] == {"code": "upstream_timeout", "message": "It took too long."}
    assert (body["is_waived"], body["amount_usd"], body["line_items"]) == (True, "0", [])
    assert body["usage"] == {"prompt_tokens": 1_000, "completion_tokens": 0, "total_tokens": 1_000}


def test_an_open_generation_has_no_usage_and_no_amount_yet(alice: Person) -> None:
    body = alice.get(f"/v1/generations/{admit(alice)}").json()
    assert (body["state"], body["outcome"], body["usage"], body["amount_usd"], body["line_items"]) == (
        "admitted",
        None,
        None,
        None,
        [],
    )
    assert (body["timings"]["claimed_at"], body["timings"]["queue_ms"]) == (None, None)


def test_the_id_may_be_in_any_form(alice: Person) -> None:
    uuid = run(alice).id
    forms = [f"chatcmpl-{uuid.hex}", f"cmpl-{uuid.hex}", f"stream:chat:{uuid}", str(uuid), uuid.hex]
    assert {alice.get(f"/v1/generations/{form}").json()["id"] for form in forms} == {f"chatcmpl-{uuid.hex}"}


@pytest.mark.parametrize(
    ("endpoint", "dialect", "form"),
    [
        ("chat.completions", "openai", "chatcmpl-{0.hex}"),
        ("chat.completions", "bitseek", "stream:chat:{0}"),
        ("completions", "opentoken", "cmpl-{0.hex}"),
    ],
)
def test_receipts_have_the_id_that_the_client_saw(
    alice: Person, endpoint: str, dialect: str, form: str
) -> None:
    row = run(alice)
    Generation.objects.filter(pk=row.pk).update(endpoint=endpoint, dialect=dialect)
    row.refresh_from_db()
    assert alice.get(f"/v1/generations/{row.id}").json()["id"] == form.format(row.id)
    entry = LedgerEntry.objects.get(generation=row)
    assert (str(row), entry.request_id) == (form.format(row.id),) * 2


def test_the_id_of_a_dropped_request_has_no_prefix(db: None) -> None:
    generation_id = identity.new_id()
    assert LedgerEntry(generation_id=generation_id).request_id == generation_id.hex


@pytest.mark.parametrize("who", ["bob", "charlie"])
def test_anothers_receipt_is_as_unknown_as_a_random_id(
    alice: Person, who: str, request: pytest.FixtureRequest
) -> None:
    other: Person = request.getfixturevalue(who)
    real, unknown = other.get(f"/v1/generations/{run(alice)}"), other.get(f"/v1/generations/{RANDOM_ID}")
    assert error(real, 404) == error(unknown, 404)
    assert error(real, 404)["code"] == "generation_not_found"


@pytest.mark.parametrize(
    "name", ["1", "chatcmpl-", "%00", "..", "chatcmpl-" + "g" * 32, RANDOM_ID + "0", "x" * 8_000]
)
def test_what_is_no_id_is_not_found(alice: Person, name: str) -> None:
    error(alice.get(f"/v1/generations/{name}"), 404)
