"""`/v1/organization/statements`: lists, formats, errors, and the digest of what is sealed."""

import csv
import io
import json
import random
from base64 import b64decode
from datetime import timedelta
from hashlib import sha256
from itertools import combinations
from typing import Any

import msgspec
import pypdfium2  # type: ignore[import-untyped]  # it brings no types
import pytest

from accounts.models import APIKey
from tests.cast import Person
from tests.usage.billing_months import NOTE, NOW, START, close_all, set_clock, set_prices, use
from usage.books import corrections, credit
from usage.models import Kind, LedgerEntry, Statement
from usage.statements import document
from usage.statements.as_pdf import MARGIN, as_pdf
from usage.statements.formats import FORMATS, Format
from usage.verification import seals

PATH = "/v1/organization/statements"


@pytest.fixture
def boss(alice: Person, monkeypatch: pytest.MonkeyPatch) -> Person:
    """Return Alice with an admin key; Acme has used the service in January and February, and today."""
    APIKey.objects.filter(pk=alice.api_key.pk).update(is_admin=True)
    chance = random.Random(1)
    set_prices(chance, [alice.api_key])
    set_clock(monkeypatch)
    for moment in (START, START + timedelta(days=20), NOW - timedelta(hours=1)):
        use(chance, alice.api_key, moment, completion=200)
    credit.grant(alice.project.organization, 10**9, NOTE)
    charge = LedgerEntry.objects.filter(kind=Kind.CHARGE).earliest("created_at")
    corrections.correct(charge.pk, -7, NOTE)
    close_all()
    return alice


def test_the_list_has_closed_months_newest_first(boss: Person) -> None:
    page = boss.get(PATH).json()
    assert [each["id"] for each in page["data"]] == ["2026-02", "2026-01"]
    assert (page["object"], page["has_more"], page["last_id"]) == ("list", False, "2026-01")
    assert [each["is_sealed"] for each in page["data"]] == [False, False]
    seals.seal(timedelta(0))
    first = boss.get(f"{PATH}?limit=1").json()
    assert (first["has_more"], first["data"][0]["is_sealed"]) == (True, True)
    assert [each["id"] for each in boss.get(f"{PATH}?after={first['last_id']}").json()["data"]] == ["2026-01"]


def test_the_json_is_what_is_sealed(boss: Person) -> None:
    response = boss.get(f"{PATH}/2026-01")
    row = Statement.objects.earliest("month")
    assert response.content.decode() == row.content
    digest = response.headers["repr-digest"].removeprefix("sha-256=:").removesuffix(":")
    assert b64decode(digest) == sha256(response.content).digest()
    assert boss.get(PATH).json()["data"][-1]["sha256"] == sha256(response.content).hexdigest()
    made = response.json()
    assert (made["id"], made["status"], made["organization"]) == ("2026-01", "closed", "Acme")
    assert made["totals"]["charged"]["nanodollars"] == row.charged_nanodollars


def test_the_current_month_is_a_preview_with_a_credit_note(boss: Person) -> None:
    response = boss.get(f"{PATH}/2026-03")
    made = response.json()
    assert made["status"] == "preview"
    assert "repr-digest" not in response.headers
    (note,) = made["credit_notes"]
    assert (note["corrects"], note["amount"]) == ("2026-01", {"usd": "-0.000000007", "nanodollars": -7})
    assert made["credit"][0]["amount"]["usd"] == "1"


def test_the_csv_adds_up(boss: Person) -> None:
    response = boss.get(f"{PATH}/2026-03", accept="text/csv")
    assert response.headers["content-disposition"] == 'attachment; filename="statement-2026-03-preview.csv"'
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    owed = [int(row["owed_nanodollars"]) for row in rows]
    assert sum(owed[:-1]) == owed[-1]
    assert {row["row"] for row in rows} >= {"opening_balance", "usage", "credit_note", "credit"}


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("text/csv;q=0, application/json", "application/json"),
        ("text/csv;q=0.5, application/pdf", "application/pdf"),
        ("text/html, */*;q=0.8", "application/json"),
        ("text/*", "text/csv"),
        ("image/png", "application/json"),
    ],
)
def test_the_weights_of_accept_are_heeded(boss: Person, accept: str, media_type: str) -> None:
    response = boss.get(f"{PATH}/2026-03", accept=accept)
    assert response.headers["content-type"].partition(";")[0] == media_type


def test_each_format_can_be_named_in_accept(boss: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    new = Format(lambda reading: b"- " + reading.document.id.encode(), "application/yaml; charset=utf-8")
    monkeypatch.setitem(FORMATS, "yaml", new)
    response = boss.get(f"{PATH}/2026-01", accept="application/yaml")
    assert response.content == b"- 2026-01"
    assert response.headers["content-disposition"] == 'attachment; filename="statement-2026-01.yaml"'
    for accept in ("*/*", "application/*"):
        assert boss.get(f"{PATH}/2026-01", accept=accept).headers["content-type"] == "application/json"


def text_of(pdf: bytes) -> str:
    document = pypdfium2.PdfDocument(pdf)
    try:
        return "\n".join(page.get_textpage().get_text_bounded() for page in document)
    finally:
        document.close()


@pytest.mark.parametrize("month", ["2026-01", "2026-03"])
def test_the_pdf_has_the_sums_and_says_what_it_is(boss: Person, month: str) -> None:
    response = boss.get(f"{PATH}/{month}?format=pdf", accept="text/csv")
    assert response.headers["content-type"] == "application/pdf"
    assert response.content == boss.get(f"{PATH}/{month}?format=pdf").content
    shown, made = text_of(response.content), boss.get(f"{PATH}/{month}").json()
    assert made["totals"]["charged"]["usd"] in shown
    assert ("Preview, as of 2026-03-03 15:20 UTC" in shown) == (month == "2026-03")
    if month == "2026-01":
        assert Statement.objects.earliest("month").digest in shown.replace("\n", "")


@pytest.mark.parametrize("name", ["Acme", "small letters and spaces " * 4, "W" * 100])
def test_the_foot_of_the_pdf_can_be_read_with_any_name(boss: Person, name: str) -> None:
    row = Statement.objects.earliest("month")
    made = msgspec.structs.replace(document.decode(row.content), organization=name.strip())
    file = pypdfium2.PdfDocument(as_pdf(made, row.digest))
    try:
        page = file[0]
        content, width = page.get_textpage(), page.get_width()
        boxes = [content.get_rect(number) for number in range(content.count_rects())]
        foot = [box for box in boxes if box[3] < MARGIN]
        text = "".join(content.get_text_bounded(*box) for box in foot)
    finally:
        file.close()
    assert all(0 < left < right < width and bottom > 0 for left, bottom, right, _ in foot)
    for one, other in combinations(foot, 2):
        is_beside = one[2] <= other[0] or other[2] <= one[0]
        is_below = one[3] <= other[1] or other[3] <= one[1]
        assert is_beside or is_below, (one, other)
    assert f"SHA-256 of its JSON: {row.digest}" in text
    assert "Page 1" in text


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("/2026-01?format=xml", "format"),
        ("/2026-01?format=csv&format=pdf", "format"),
        ("/2026-01?month=1", "month"),
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?after=x", "after"),
    ],
)
def test_errors_name_the_parameter(boss: Person, query: str, param: str) -> None:
    response = boss.get(PATH + query)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("period", ["2025-12", "2026-04", "2026-13", "2026-1", "9999-12", "２０２６-01", "x"])
def test_a_month_without_a_statement_is_a_404(boss: Person, period: str) -> None:
    response = boss.get(f"{PATH}/{period}")
    assert (response.status_code, response.json()["error"]["param"]) == (404, "period")


def test_only_admin_keys_of_the_organization_read_it(boss: Person, bob: Person, charlie: Person) -> None:
    def seen(person: Person, path: str) -> tuple[int, Any]:
        response = person.get(path)
        return response.status_code, json.loads(response.content)

    assert seen(bob, f"{PATH}/2026-01")[0] == 403
    assert seen(bob, PATH)[0] == 403
    APIKey.objects.filter(pk=charlie.api_key.pk).update(is_admin=True)
    assert seen(charlie, PATH)[1]["data"] == []
    assert seen(charlie, f"{PATH}/2026-01")[0] == 404
    assert seen(charlie, f"{PATH}/2026-03")[1]["totals"]["charged"]["nanodollars"] == 0
    APIKey.objects.filter(pk=boss.api_key.pk).update(scopes=["completions"])
    assert seen(boss, PATH)[0] == 403
