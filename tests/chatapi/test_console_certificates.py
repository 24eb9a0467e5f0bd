"""Certificates of authorities in the console: what the pages show, change and refuse."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts import certificates
from accounts.audit.models import AuditEntry
from accounts.authentication import look_up
from accounts.models import Certificate, Project, Role
from tests.admin_pages import text
from tests.cast import Person
from tests.chatapi.console_pages import as_role, url
from tests.client_certificates import HEADER, PROXY, make

CA = make("authority")


@pytest.fixture
def admin(alice: Person, bob: Person, settings: Settings) -> Client:
    """Return a client of an admin of Acme, whose certificates a proxy passes on."""
    settings.CLIENT_CERTIFICATE_HEADER, settings.TRUSTED_PROXIES = HEADER, [PROXY]
    return as_role(alice, Role.ADMIN)


@pytest.fixture
def row(alice: Person) -> Certificate:
    return certificates.create(alice.project.organization_id, CA.pem, "office")


def form_of(client: Client, path: str) -> dict[str, Any]:
    """Return what the form at this path sends if nobody changes it."""
    found = dict(client.get(path).context["form"].initial)
    return {name: value for name, value in found.items() if value is not False}


def test_a_certificate_is_uploaded_activated_and_removed(admin: Client, alice: Person, bob: Person) -> None:
    settings_page = admin.get(url(alice, "settings")).content.decode()
    assert url(alice, "settings/certificates") in settings_page
    assert "No certificates yet." in text(admin.get(url(alice, "settings/certificates")))
    sent = {"name": "office", "certificate": CA.pem}
    made = admin.post(url(alice, "settings/certificates/new"), sent, follow=True)
    assert "The certificate is stored. Say where it is to be active." in text(made)
    row = Certificate.objects.get()
    path = url(alice, f"settings/certificates/{row.pk}")
    assert look_up(bob.key).certificates == ()

    saved = admin.post(
        path, form_of(admin, path) | {"projects": [bob.project.pk], "name": "home"}, follow=True
    )
    assert "This holds within a second." in text(saved)
    ((_, validity, places),) = saved.context["certificates"]
    assert (validity, places) == (("valid", "good"), "research")
    assert (look_up(bob.key).certificates, look_up(alice.key).certificates) == ((CA.certificate,), ())

    whole = form_of(admin, path) | {"is_active": "on"}
    ((_, _, places),) = admin.post(path, whole, follow=True).context["certificates"]
    assert places == "the whole organization, research"
    assert look_up(alice.key).certificates == (CA.certificate,)
    assert "Remove the certificate" not in text(admin.get(path))
    assert "This certificate is active." in text(admin.post(f"{path}/remove", follow=True))

    nothing = form_of(admin, path) | {"projects": []}
    del nothing["is_active"]
    assert admin.post(path, nothing).status_code == 302
    assert look_up(bob.key).certificates == look_up(alice.key).certificates == ()
    assert "The certificate is removed." in text(admin.post(f"{path}/remove", follow=True))
    entries = AuditEntry.objects.filter(object_type="accounts.certificate").order_by("pk")
    assert [each.action for each in entries] == [
        "created", "changed", "activated", "activated", "deactivated", "deactivated", "deleted",
    ]  # fmt: skip
    assert entries[0].changes["fingerprint"] == [None, row.fingerprint]
    assert "content" not in entries[0].changes


def test_a_wrong_upload_is_an_error_of_its_field(admin: Client, alice: Person, row: Certificate) -> None:
    path = url(alice, "settings/certificates/new")
    for sent, field, words in (
        ({"certificate": "garbage"}, "certificate", "one X.509 certificate as PEM"),
        ({"certificate": CA.issue().pem}, "certificate", "do not say CA:TRUE"),
        ({"certificate": CA.pem}, "certificate", "has this certificate already"),
        ({"certificate": make("a").pem, "name": "a/b"}, "name", "ASCII letters"),
        ({"certificate": ""}, "certificate", "required"),
    ):
        answer = admin.post(path, sent)
        assert answer.status_code == 400
        assert words in answer.context["form"].errors[field][0]
    assert Certificate.objects.count() == 1


def test_a_form_that_is_older_than_another_change_is_refused(
    admin: Client, alice: Person, row: Certificate
) -> None:
    path = url(alice, f"settings/certificates/{row.pk}")
    old = form_of(admin, path)
    certificates.activate(row.organization_id, [row])
    answer = admin.post(path, old)
    assert "was changed or removed just now" in text(answer, 400)
    assert Certificate.objects.get().is_active


def test_without_a_proxy_the_pages_say_what_is_missing(
    admin: Client, alice: Person, row: Certificate, settings: Settings
) -> None:
    settings.CLIENT_CERTIFICATE_HEADER = ""
    path = url(alice, f"settings/certificates/{row.pk}")
    for each in (path, url(alice, "settings/certificates")):
        assert "No proxy passes on client certificates to this service" in text(admin.get(each))
    answer = admin.post(path, form_of(admin, path) | {"is_active": "on"})
    assert "CHATAPI_CLIENT_CERTIFICATE_HEADER" in text(answer, 400)
    assert not Certificate.objects.get().is_active


@pytest.mark.parametrize(
    ("days", "shown"), [(-1, "expired"), (29, "expires soon"), (31, "valid"), (300, "not valid yet")]
)
def test_the_list_says_what_expires(
    admin: Client, alice: Person, row: Certificate, days: int, shown: str
) -> None:
    now = timezone.now()
    start = now + timedelta(days=1 if shown == "not valid yet" else -9)
    Certificate.objects.update(expires_at=now + timedelta(days=days), valid_at=start)
    page = admin.get(url(alice, "settings/certificates"))
    assert page.context["certificates"][0][1][0] == shown


def test_projects_of_others_are_no_choice(
    admin: Client, alice: Person, charlie: Person, row: Certificate
) -> None:
    path = url(alice, f"settings/certificates/{row.pk}")
    answer = admin.post(path, form_of(admin, path) | {"projects": [charlie.project.pk]})
    assert answer.status_code == 400
    assert not Project.objects.filter(certificates__isnull=False).exists()
