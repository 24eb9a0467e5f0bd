"""The catalog file in the admin: looked at first, applied then, and exported again."""

import html
import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.audit.models import AuditEntry
from chatapi import catalog
from chatapi.models import Deployment, ServedModel
from chatapi.pages.catalog_pages import EXPORT_PERMISSIONS, IMPORT_PERMISSIONS, MAX_FILE_BYTES
from tests import locked_database
from tests.admin_pages import text
from usage.models import Price

IMPORT, EXPORT, LIST = "/admin/catalog/import", "/admin/catalog/export", "/admin/chatapi/servedmodel/"
MODEL = """
[[models]]
id = "small"
context_window = 8192
max_output_tokens = 4096
price = { input_per_mtok = "0.15", cached_input_per_mtok = "0.075", output_per_mtok = "0.90" }
[[models.deployments]]
engine = "openai_compatible"
name = "<b>vllm</b>"
base_url = "http://127.0.0.1:8080/v1"
"""


def upload(client: Client, text: str | bytes, **more: str) -> Any:
    """Send a file to the first form."""
    data = text.encode() if isinstance(text, str) else text
    return client.post(IMPORT, {"file": SimpleUploadedFile("catalog.toml", data), **more})


def agreed(preview: Any) -> dict[str, str]:
    """Return the preview's form as a browser sends it."""
    page = preview.content.decode()
    sent = {
        name: html.unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page)
    }
    (text,) = re.findall(r'<textarea name="text" hidden readonly>\n(.*?)</textarea>', page, re.DOTALL)
    return sent | {"text": html.unescape(text).replace("\n", "\r\n")}


# ---- import


def test_a_file_is_looked_at_before_it_counts(root: Client, small: ServedModel) -> None:
    preview = upload(root, MODEL)
    assert "price output_per_mtok 0.6 0.9" in text(preview)
    assert "deployment &lt;b&gt;vllm&lt;/b&gt; created" in preview.content.decode()
    assert 'engine "openai_compatible", base_url "http://127.0.0.1:8080/v1"' in html.unescape(text(preview))
    assert (Price.objects.count(), Deployment.objects.count()) == (1, 1)
    applied = root.post(IMPORT, agreed(preview))
    assert applied.headers["location"] == LIST
    assert "Models: 1 changed. It takes effect within a second." in text(root.get(LIST))
    price = catalog.load()["small"].price
    assert price is not None
    assert price.output_per_mtok_nanodollars == 900_000_000


def test_the_preview_of_a_new_model_has_no_earlier_prices(root: Client) -> None:
    preview = text(upload(root, MODEL))
    assert "price input_per_mtok 0.15" in preview
    assert "none" not in preview


@pytest.mark.django_db(transaction=True)
def test_a_second_import_gives_up_after_a_while(root: Client, small: ServedModel) -> None:
    form = agreed(upload(root, MODEL))
    with locked_database.impatient(), locked_database.locked("chatapi_servedmodel"):
        answer = root.post(IMPORT, form)
    assert answer.status_code == 503
    assert "Try again in a moment" in text(answer, 503)
    assert root.post(IMPORT, form).headers["location"] == LIST


def test_an_import_is_in_the_audit_log_with_its_person(root: Client, small: ServedModel) -> None:
    root.post(IMPORT, agreed(upload(root, MODEL)))
    entries = {
        (entry.action, entry.object_type, entry.object_name): entry
        for entry in AuditEntry.objects.filter(actor="root")
    }
    assert ("changed", "chatapi.servedmodel", "small") in entries
    assert ("created", "chatapi.deployment", "small by <b>vllm</b>") in entries
    assert entries["changed", "chatapi.deployment", "small by sandbox"].changes == {
        "is_active": [True, False]
    }


def test_a_preview_that_is_out_of_date_is_shown_again_and_does_nothing(
    root: Client, small: ServedModel
) -> None:
    form = agreed(upload(root, MODEL))
    ServedModel.objects.update(context_window=5_000, max_output_tokens=1_000)
    again = root.post(IMPORT, form)
    assert "The catalog has changed since the preview." in text(again)
    assert "context_window 5000 8192" in text(again)
    assert ServedModel.objects.get().context_window == 5_000
    assert root.post(IMPORT, agreed(again)).status_code == 302
    assert ServedModel.objects.get().context_window == 8_192


def test_what_was_not_previewed_is_not_applied(root: Client) -> None:
    for digest in ("", "0" * 64):
        assert root.post(IMPORT, {"text": MODEL, "expected": digest}).status_code == 200
    assert not ServedModel.objects.exists()


@pytest.mark.parametrize(("wish", "is_served"), [({}, True), ({"deactivate_missing": "on"}, False)])
def test_models_that_the_file_lacks_are_listed_and_stop_on_request(
    root: Client, small: ServedModel, wish: Any, is_served: bool
) -> None:
    preview = upload(root, MODEL.replace("small", "large"), **wish)
    assert ("unchanged: small" in text(preview)) == is_served
    assert ("no longer served: small" in text(preview)) != is_served
    assert root.post(IMPORT, agreed(preview)).status_code == 302
    assert ServedModel.objects.get(id="small").is_active == is_served


def test_a_file_that_changes_nothing_says_so_and_has_nothing_to_apply(
    root: Client, small: ServedModel
) -> None:
    preview = upload(root, root.get(EXPORT).content)
    assert "Nothing: the catalog already matches the file." in text(preview)
    assert "Apply" not in text(preview)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_file_from_another_system_is_read(root: Client, mark: bytes) -> None:
    assert (
        root.post(IMPORT, agreed(upload(root, mark + MODEL.replace("\n", "\r\n").encode()))).status_code
        == 302
    )
    assert ServedModel.objects.get().id == "small"


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (
            MODEL.replace("8192", '"8192"'),
            "models[0].context_window: must be a whole number, got text in quotes (line 4)",
        ),
        (MODEL + "context_window", "(at end of document)"),
        ("[[models]", "(at line 1, column 9)"),
        (b"\xff", "The file is not UTF-8 text: byte 0 is not."),
        (b"", "The file is empty."),
        ("# nothing", "the file: lacks models"),
        ("#" * (MAX_FILE_BYTES + 1), "The file is larger than 64 KiB."),
        ("a = " + "[" * 60_000, "nested too deeply"),
        ("a = 1" + "0" * 5_000, "Exceeds the limit"),
    ],
    ids=lambda value: value[:20],
)
def test_an_error_in_a_file_has_its_place(root: Client, sent: str | bytes, says: str) -> None:
    response = upload(root, sent)
    assert response.status_code == 400
    assert says in html.unescape(text(response, 400))
    assert not ServedModel.objects.exists()


def test_nothing_sent_is_a_mistake_and_not_an_error(root: Client) -> None:
    for sent in (
        {},
        {"text": "#" * (MAX_FILE_BYTES + 1), "expected": "0"},
        {"text": "\x00", "expected": "0"},
    ):
        assert root.post(IMPORT, sent).status_code == 400


# ---- export


def test_the_export_is_a_file_that_the_import_takes(root: Client, small: ServedModel) -> None:
    response = root.get(EXPORT)
    assert re.fullmatch(
        r'attachment; filename="catalog-\d{4}-\d\d-\d\d\.toml"', response.headers["content-disposition"]
    )
    assert 'output_per_mtok = "0.6"' in response.content.decode()
    Deployment.objects.all().delete()
    root.post(IMPORT, agreed(upload(root, response.content)))
    assert (
        root.get(EXPORT).content.decode().partition("[[")[2] == response.content.decode().partition("[[")[2]
    )


def test_a_catalog_that_no_file_can_say_is_a_message(root: Client, small: ServedModel) -> None:
    Deployment.objects.update(timeouts=[1])
    assert root.get(EXPORT).headers["location"] == LIST
    assert "The catalog can't be written as a file" in html.unescape(text(root.get(LIST)))


# ---- permissions


def allowed(*permissions: str) -> Client:
    """Return a client of staff with these permissions."""
    client, clerk = Client(), User.objects.create_user("clerk", is_staff=True)
    for name in permissions:
        app, _, codename = name.partition(".")
        clerk.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    client.force_login(clerk)
    return client


@pytest.mark.parametrize("missing", IMPORT_PERMISSIONS)
def test_an_import_needs_all_that_it_may_change(db: None, missing: str) -> None:
    client = allowed(*(name for name in IMPORT_PERMISSIONS if name != missing))
    assert [client.get(IMPORT).status_code, upload(client, MODEL).status_code] == [403, 403]


@pytest.mark.parametrize("missing", EXPORT_PERMISSIONS)
def test_an_export_needs_all_that_it_shows(db: None, missing: str) -> None:
    assert allowed(*(name for name in EXPORT_PERMISSIONS if name != missing)).get(EXPORT).status_code == 403


def test_permitted_people_import_and_strangers_and_forged_forms_do_not(db: None) -> None:
    assert upload(allowed(*IMPORT_PERMISSIONS), MODEL).status_code == 200
    assert [Client().get(path).status_code for path in (IMPORT, EXPORT)] == [302, 302]
    careless = Client(enforce_csrf_checks=True)
    careless.force_login(User.objects.create_superuser("root"))
    assert upload(careless, MODEL).status_code == 403
