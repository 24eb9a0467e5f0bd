"""Mail over TLS, from the start or by STARTTLS, to a server that asks for a password."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from pytest_django.fixtures import Settings

from chatapi.notifications.models import Delivery, DeliveryAttempt
from tests.cast import Person
from tests.certificates import make_certificate
from tests.chatapi.notifications.conftest import Deliver, has_signed_in, write_event
from tests.mail_server import PASSWORD, USER, WAYS, Mailbox, serving, use
from usage.database.clock import database_now


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("right"))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("wrong"))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mailbox(
    way: str, right: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> Iterator[Mailbox]:
    """Run a server whose authority is known."""
    monkeypatch.setenv("SSL_CERT_FILE", str(right))
    with serving(tls=way, certificate=right) as found:
        use(settings, url_of(found.port, way))
        yield found


def url_of(port: int, way: str, password: str = PASSWORD) -> str:
    place = f"{quote(USER, safe='')}:{quote(password, safe='')}@127.0.0.1:{port}"
    return f"smtps://{place}" if way == "smtps" else f"smtp://{place}?tls=starttls"


@pytest.fixture
def now(alice: Person, transactional_db: None) -> datetime:
    """Write an event of which alice gets mail."""
    now = database_now()
    has_signed_in(alice)
    write_event(alice, now)
    return now


def error_after(deliver: Deliver, now: datetime) -> str:
    assert deliver(now) == 1
    assert Delivery.objects.get().state == Delivery.State.DUE
    return DeliveryAttempt.objects.get().error


def test_mail_is_sent_after_a_sign_in(mailbox: Mailbox, deliver: Deliver, now: datetime) -> None:
    assert deliver(now) == 1
    assert DeliveryAttempt.objects.get().error == ""
    assert mailbox.receivers == ["alice@example.com"]
    assert mailbox.passwords == [PASSWORD.encode()]


def test_a_server_of_an_unknown_authority_gets_neither_mail_nor_password(
    mailbox: Mailbox, wrong: Path, deliver: Deliver, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(wrong))
    assert error_after(deliver, now) == "the mail server: SSLCertVerificationError"
    assert (mailbox.messages, mailbox.passwords) == ([], [])


def test_a_wrong_password_is_named_and_not_logged(
    mailbox: Mailbox, way: str, deliver: Deliver, now: datetime, settings: Settings
) -> None:
    use(settings, url_of(mailbox.port, way, "hunter2"))
    assert error_after(deliver, now) == "the mail server: SMTPAuthenticationError 535"
    assert mailbox.messages == []


def test_without_tls_a_server_gets_no_password(settings: Settings, deliver: Deliver, now: datetime) -> None:
    with serving() as plain:
        use(settings, url_of(plain.port, "starttls"))
        assert error_after(deliver, now) == "the mail server: SMTPNotSupportedError"
    assert (plain.messages, plain.passwords) == ([], [])
