"""What can't be read from the environment is one line that names the variable."""

import runpy

import pytest
from django.core.exceptions import ImproperlyConfigured

from chatapi import settings
from chatapi.environment import Environment

VARIABLE = "CHATAPI_TESTED"


@pytest.mark.parametrize("text", ["", "12.5", "soon", "0x10"])
def test_it_refuses_what_is_no_whole_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ImproperlyConfigured, match=f"{VARIABLE}={text!r} must be a whole number"):
        Environment().int(VARIABLE, default=1)


@pytest.mark.parametrize(
    ("text", "value"), [("True", True), ("on", True), ("1", True), ("off", False), ("NO", False)]
)
def test_it_reads_yes_and_no_in_any_case(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert Environment().bool(VARIABLE, default=not value) is value


def test_it_refuses_what_is_neither_yes_nor_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    with pytest.raises(ImproperlyConfigured, match=f"{VARIABLE}='2' must be one of"):
        Environment().bool(VARIABLE, default=False)


def test_a_choice_is_read_in_any_case_and_refused_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "JSON")
    assert Environment().choice(VARIABLE, default="console", choices=("console", "json")) == "json"
    monkeypatch.setenv(VARIABLE, "Jsno")
    with pytest.raises(ImproperlyConfigured, match=f"^{VARIABLE}='Jsno' must be one of console, json.$"):
        Environment().choice(VARIABLE, default="console", choices=("console", "json"))


def test_a_secret_may_begin_with_a_dollar_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "$hunter2")
    assert Environment().str(VARIABLE) == Environment().str(VARIABLE, default="") == "$hunter2"
    assert Environment().list(VARIABLE, default=[]) == ["$hunter2"]
    with pytest.raises(ImproperlyConfigured, match="must be a whole number"):
        Environment().int(VARIABLE, default=1)


@pytest.mark.parametrize(
    "url", ["mysql://root:hunter2@localhost/x", "hunter2", "postgres://u:hunter2@h:port/x"]
)
def test_it_refuses_other_databases_without_showing_the_password(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv(VARIABLE, url)
    with pytest.raises(ImproperlyConfigured, match=VARIABLE):
        Environment().database(VARIABLE, default="")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "postgres://",
        "postgres://u:hunter2@h:1",
        "postgres://h/",
    ],
)
def test_it_refuses_a_database_without_a_name(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(VARIABLE, url)
    with pytest.raises(ImproperlyConfigured, match=f"^{VARIABLE} names no database: [^2]*$"):
        Environment().database(VARIABLE, default="")


def test_a_service_of_postgresql_names_its_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "postgres:///?service=books")
    assert Environment().database(VARIABLE, default="")["OPTIONS"] == {"service": "books"}


def test_it_keeps_what_a_database_url_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "postgres://u:p%40ss@db:5433/books?sslmode=require")
    database = Environment().database(VARIABLE, default="")
    assert (database["HOST"], database["PORT"], database["PASSWORD"]) == ("db", 5433, "p@ss")
    assert database["OPTIONS"] == {"sslmode": "require"}


def test_options_of_a_database_url_come_before_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL takes the later one of two values."""
    monkeypatch.setenv("DATABASE_URL", "postgres://db/books?options=-c%20role%3Da%20-c%20lock_timeout%3D0")
    options = runpy.run_path(settings.__file__)["DATABASES"]["default"]["OPTIONS"]["options"]
    assert options.startswith("-c role=a -c lock_timeout=0 -c lock_timeout=5000 ")
    assert options.endswith(" -c synchronous_commit=on")


def test_it_names_what_was_not_read_and_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment()
    environment.int("TEST21_WORKER_CONCURRENCY", default=1)
    environment.int("TEST21_PING_MS", default=1)
    for name in ("TEST21_WORKER_CONCURENCY", "TEST21_PING_MS", "TEST21_ZZZ"):
        monkeypatch.setenv(name, "1")
    assert environment.unknown("TEST21_") == {
        "TEST21_WORKER_CONCURENCY": "TEST21_WORKER_CONCURRENCY",
        "TEST21_ZZZ": "",
    }


def test_what_kubernetes_and_clients_set_is_not_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes has such variables for each Service, here of the names `chatapi` and `chatapi-web`."""
    names = [
        "CHATAPI_KEY",
        "CHATAPI_SERVICE_HOST",
        "CHATAPI_SERVICE_PORT_HTTP",
        "CHATAPI_PORT",
        "CHATAPI_PORT_8000_TCP_ADDR",
        "CHATAPI_WEB_SERVICE_PORT",
        "CHATAPI_WEB_PORT_8000_TCP",
    ]
    for name in names:
        monkeypatch.setenv(name, "1")
    assert not set(names) & set(Environment().unknown("CHATAPI_"))


def test_mail_goes_through_the_server_that_a_url_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "smtp://bob:p%40ss@mail.example.com:587?tls=starttls")
    found = Environment().email(VARIABLE)
    assert found["EMAIL_BACKEND"] == "django.core.mail.backends.smtp.EmailBackend"
    assert (found["EMAIL_HOST"], found["EMAIL_PORT"]) == ("mail.example.com", 587)
    assert (found["EMAIL_HOST_USER"], found["EMAIL_HOST_PASSWORD"]) == ("bob", "p@ss")
    assert (found["EMAIL_USE_TLS"], found["EMAIL_USE_SSL"]) == (True, False)
    monkeypatch.setenv(VARIABLE, "smtps://bob:p%40ss@mail.example.com")
    found = Environment().email(VARIABLE)
    assert (found["EMAIL_PORT"], found["EMAIL_USE_TLS"], found["EMAIL_USE_SSL"]) == (465, False, True)


@pytest.mark.parametrize(("url", "backend"), [("", "dummy"), ("console:", "console")])
def test_mail_goes_nowhere_or_to_the_console(monkeypatch: pytest.MonkeyPatch, url: str, backend: str) -> None:
    monkeypatch.setenv(VARIABLE, url)
    assert Environment().email(VARIABLE) == {
        "EMAIL_BACKEND": f"django.core.mail.backends.{backend}.EmailBackend"
    }


@pytest.mark.parametrize(
    "url",
    [
        "mail.example.com",
        "http://u:hunter2@h",
        "smtp://",
        "smtp://u:hunter2@h",
        "smtp://u:hunter2@h:port?tls=starttls",
        "smtp://u:hunter2@h/folder?tls=starttls",
        "smtp://u:hunter2@h?tls=maybe",
        "smtps://u:hunter2@h?tls=starttls",
        "smtp://u:hunter2@h?tls=starttls&timeout=1",
    ],
)
def test_it_refuses_what_is_no_mail_server_without_showing_the_password(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv(VARIABLE, url)
    with pytest.raises(ImproperlyConfigured, match=f"^{VARIABLE} ") as raised:
        Environment().email(VARIABLE)
    assert "hunter2" not in str(raised.value)
