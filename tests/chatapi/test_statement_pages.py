"""The pages of statements: permissions, filters, and files."""

import random
import re
from datetime import UTC, datetime, timedelta

import pypdfium2  # type: ignore[import-untyped]  # it brings no types
import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.audit.models import AuditEntry
from chatapi.console import statement_pages as console_pages
from tests.admin_pages import client_of, shown, text
from tests.cast import Person
from tests.usage.billing_months import NOTE, NOW, START, close_all, keys_of, set_clock, set_prices, use
from usage.books import corrections, credit
from usage.books.corrections import Correction
from usage.models import LedgerEntry, Statement
from usage.pages import statement_pages
from usage.verification import seals

PATH = "/admin/statements/"


@pytest.fixture
def used(alice: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Acme and Umbrella use the service in two months that are over."""
    set_clock(monkeypatch)
    chance = random.Random(1)
    set_prices(chance, [alice.api_key])
    for key in (alice.api_key, charlie.api_key):
        for days in (0, 20):
            use(chance, key, START + timedelta(days=days), completion=100)
    close_all()


@pytest.fixture
def acme_path(used: None, alice: Person) -> str:
    """Return the path of Acme's statement of January."""
    return f"{PATH}{alice.project.organization_id}/2026-01"


def test_an_operator_finds_the_statement_of_an_organization_and_month(
    used: None, root: Client, alice: Person
) -> None:
    everything = shown(root.get(PATH))
    assert everything.count("January 2026") == everything.count("February 2026") == 2
    assert "Acme, March 2026 Preview" in everything
    owner = alice.project.organization_id
    response = root.get(f"{PATH}?organization={owner}&month=2026-01")
    found = shown(response)
    assert (found.count("January 2026"), "February 2026" in found) == (1, False)
    assert [each.value() for each in response.context["filters"]] == [str(owner), "2026-01"]
    assert "Umbrella" not in shown(root.get(f"{PATH}?organization=Acme")).partition("Find")[2]


def test_a_pdf_begins_its_usage_on_the_first_page_and_no_numbers_touch(
    db: None, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    chance, keys = random.Random(1), keys_of("Acme")
    set_prices(chance, keys)
    for days in range(31):
        use(chance, keys[days % len(keys)], START + timedelta(days=days), completion=100)
    close_all()
    file = root.get(f"{PATH}{keys[0].project.organization_id}/2026-01.pdf").content
    document = pypdfium2.PdfDocument(file)
    pages = [page.get_textpage().get_text_bounded() for page in document]
    document.close()
    assert "Closing balance" in pages[0]
    assert "Kind of tokens" in pages[0]
    assert re.search(r"\$\d\.\d{9} \$\d\.\d{9} ", pages[0])
    assert not re.search(r"\d\$", "\n".join(pages))


def test_the_list_has_pages(used: None, root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_pages, "PAGE", 3)
    response = root.get(PATH)
    assert [str(row) for row, _ in response.context["rows"]] == [
        "2026-02 of Acme", "2026-02 of Umbrella", "2026-01 of Acme",
    ]  # fmt: skip
    older = root.get(response.context["older_url"])
    assert [str(row) for row, _ in older.context["rows"]] == ["2026-01 of Umbrella"]
    assert "Preview" not in shown(older)


@pytest.mark.parametrize(
    ("query", "mistake"),
    [
        ("month=2026-13", "Month: &#x27;2026-13&#x27; is not a month such as 2026-10."),
        ("after=x", "After: &#x27;x&#x27; is not the place of a statement."),
        ("organization=nobody", "Organization: No organization has the name or number &#x27;nobody&#x27;"),
    ],
)
def test_a_mistake_in_the_url_is_named(db: None, root: Client, query: str, mistake: str) -> None:
    assert mistake in shown(root.get(f"{PATH}?{query}"), 400)


def test_people_see_the_statements_of_their_organizations(
    acme_path: str, alice: Person, charlie: Person
) -> None:
    seen = shown(client_of(alice.user).get(PATH))
    assert "Acme" in seen
    assert "Umbrella" not in seen
    assert "Closing balance" in shown(client_of(alice.user).get(acme_path))
    for path in (acme_path, f"{acme_path}.pdf", f"{PATH}999999999/2026-01"):
        assert client_of(charlie.user).get(path).status_code == 404
    assert client_of(User.objects.create_user("clerk", is_staff=True)).get(acme_path).status_code == 403


def test_the_page_has_the_sums_and_the_proof(acme_path: str, root: Client) -> None:
    row = Statement.objects.filter(organization__name="Acme").earliest("month")
    assert "It is sealed within a minute." in shown(root.get(acme_path))
    seals.seal(timedelta(0))
    with CaptureQueriesContext(
        connection,
    ) as queries:
        response = root.get(acme_path)
    page = shown(response)
    assert row.digest in page
    decimals = [len(found[1]) for found in re.finditer(r"\$[\d,]+\.?(\d*)", page)]
    assert min(decimals) >= 2
    assert "Ledger&#x27;s chain Sealed" in page or "Ledger's chain Sealed" in page
    assert len(queries) <= 12
    assert len(response.content) < 150_000
    preview = shown(root.get(acme_path.replace("2026-01", "2026-03")))
    assert "Preview, as of 2026-03-03 15:20 UTC." in preview
    assert row.digest not in preview


def test_a_row_has_few_bytes_beside_its_texts(acme_path: str, root: Client, alice: Person) -> None:
    owner = alice.project.organization_id
    for path in (acme_path, f"/console/{owner}/statements/2026-01"):
        rows = re.findall(r"<tr><td.*?</tr>", root.get(path).content.decode(), re.DOTALL)
        assert rows
        for row in rows:
            assert len(row) - len(re.sub(r"<[^>]*>", "", row)) <= 200, row
            assert not re.search(r"\s{2}|\n", row), row


def test_corrections_lead_to_those_of_the_month(
    root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    chance = random.Random(1)
    set_prices(chance, [alice.api_key])
    use(chance, alice.api_key, START, completion=100)
    charge = LedgerEntry.objects.get()
    for moment in (START + timedelta(days=10), NOW - timedelta(days=1)):
        with transaction.atomic():
            corrections.write(moment, [Correction(charge, 77, "story", "test", is_rerating=False)])
    close_all()
    for month in ("2026-02", "2026-03"):
        page = root.get(f"{PATH}{alice.project.organization_id}/{month}")
        rows = root.get(page.context["corrections_url"]).context["cl"].queryset
        assert [f"{row.created_at:%Y-%m}" for row in rows] == [month]


def test_grants_of_fractions_of_a_cent_are_exact_also_where_their_sum_has_none(
    db: None, root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    for days in (2, 1):
        set_clock(monkeypatch, NOW - timedelta(days=days))
        credit.grant(alice.project.organization, 5_000_000, NOTE)
    set_clock(monkeypatch)
    path = f"{PATH}{alice.project.organization_id}/2026-03"
    page = shown(root.get(path))
    assert "1 March 2026 Granted 1 $0.0050 2 March 2026 Granted 1 $0.0050" in page
    assert "Plus: credit granted $0.0100" in page
    assert root.get(f"{path}.pdf").content.startswith(b"%PDF-")


def test_files_are_downloads_and_in_the_audit_log(acme_path: str, root: Client) -> None:
    row = Statement.objects.filter(organization__name="Acme").earliest("month")
    response = root.get(f"{acme_path}.json")
    assert response.content.decode() == row.content
    assert response.headers["content-disposition"] == 'attachment; filename="statement-2026-01.json"'
    assert root.get(f"{acme_path}.pdf").content.startswith(b"%PDF-")
    assert root.get(f"{acme_path}.csv").content.startswith(b"statement,status,row,")
    assert root.get(f"{acme_path}.exe").status_code == 404
    files = [entry.changes["file"][1] for entry in AuditEntry.objects.filter(action="exported")]
    assert sorted(files) == [f"statement-2026-01.{name}" for name in ("csv", "json", "pdf")]


def test_first_use_says_when_there_will_be_one(db: None, root: Client, alice: Person) -> None:
    page = shown(root.get(PATH))
    assert "No month is closed yet." in page
    assert "Acme" in page
    assert "There are more organizations" not in page


def test_a_list_of_previews_that_is_cut_says_so(
    db: None, root: Client, alice: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement_pages, "MAX_PREVIEWS", 1)
    assert "There are more organizations. Choose one above" in shown(root.get(PATH))


def test_the_console_has_the_organizations_statements_and_no_others(
    acme_path: str, alice: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_pages, "PAGE", 1)
    client, row = client_of(alice.user), Statement.objects.filter(organization__name="Acme").earliest("month")
    home = f"/console/{alice.project.organization_id}/statements"
    newest = client.get(home)
    assert [str(month) for month in newest.context["previews"]] == ["2026-03"]
    assert [str(each) for each, _ in newest.context["rows"]] == ["2026-02 of Acme"]
    older = client.get(newest.context["older_url"])
    assert ([str(each) for each, _ in older.context["rows"]], older.context["previews"]) == ([str(row)], [])
    with CaptureQueriesContext(connection) as queries:
        page = text(client.get(f"{home}/2026-01"))
    assert row.digest in page
    assert len(queries) <= 12
    assert client.get(f"{home}/2026-01.json").content.decode() == row.content
    assert client.get(f"{home}/2026-01.csv").content == client.get(f"{acme_path}.csv").content
    assert client.get(f"{home}/2026-01.pdf").content.startswith(b"%PDF-")
    entries = AuditEntry.objects.filter(action="exported", actor=str(alice.user))
    owner = alice.project.organization_id
    assert [*entries.order_by("pk").values_list("organization_id", flat=True)] == [owner, owner, None, owner]
    assert "Preview, as of 2026-03-03 15:20 UTC." in text(client.get(f"{home}/2026-03"))
    for path in ("/2025-01", "/2026-13", "/2026-04", "/2026-01.exe"):
        assert client.get(home + path).status_code == 404
    for path in ("", "/2026-01", "/2026-01.pdf"):
        assert client_of(charlie.user).get(home + path).status_code == 404
    assert "After: " in text(client.get(f"{home}?after=x"), status=400)


@pytest.mark.django_db(transaction=True)  # which counts the statements of transactions, too
def test_the_preview_of_a_month_that_is_being_closed_asks_little(
    alice: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 3, 1, 0, 30, tzinfo=UTC)
    set_clock(monkeypatch, now)
    chance = random.Random(1)
    set_prices(chance, [alice.api_key])
    for days in (0, 20, 31.5, 32.01):
        use(chance, alice.api_key, START + timedelta(days=days), completion=100)
    close_all()
    owner, client = alice.project.organization_id, client_of(alice.user)
    for path in (f"/console/{owner}/statements/2026-02", f"{PATH}{owner}/2026-02"):
        with CaptureQueriesContext(connection) as queries:
            page = text(client.get(path))
        assert "Preview, as of 2026-03-01 00:00 UTC." in page
        assert len(queries) <= 12, "\n".join(each["sql"] for each in queries)
