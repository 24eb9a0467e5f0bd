"""A look-up that the admin refuses is one line in the log, and many of them are few lines."""

import io
import logging
from collections.abc import Iterator

import pytest
from django.test import Client

from chatapi.refusal_log import MAX_CHARACTERS, MAX_LINES_PER_MINUTE, OneLine

LIST = "/admin/accounts/apikey/"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Yield the service's standard error, with a minute that has just begun."""
    (handler,) = [each for each in logging.getLogger("django.security").handlers if each.name == "refusals"]
    assert isinstance(handler, logging.StreamHandler)
    stream = io.StringIO()
    usual, usual_filters = handler.setStream(stream), handler.filters
    handler.filters = [OneLine()]
    yield stream
    handler.setStream(usual)
    handler.filters = usual_filters


@pytest.mark.parametrize(
    "query",
    [
        "digest__startswith=a",
        "password=x",
        "nothing%0aE+chatapi:+a+line+of+its+own=1",
        pytest.param("x" * 5_000 + "=1", id="long"),
    ],
)
def test_a_refused_look_up_is_one_line(admin_client: Client, written: io.StringIO, query: str) -> None:
    assert admin_client.get(f"{LIST}?{query}").status_code == 400
    (line,) = written.getvalue().splitlines()
    assert f"W django.security.DisallowedModelAdminLookup: GET {LIST}: Filtering by " in line
    assert len(line) < MAX_CHARACTERS + 100


INVITATION, ROUTE = "/console/invitation/MQ/secret-token/", "/console/invitation/<uidb64>/<token>/"


def test_a_form_without_its_token_is_logged_by_its_route(db: None, written: io.StringIO) -> None:
    """The path has what nobody may read, such as an invitation."""
    assert Client(enforce_csrf_checks=True).post(INVITATION).status_code == 403
    (line,) = written.getvalue().splitlines()
    assert f"W django.security.csrf: POST {ROUTE}: Forbidden (CSRF cookie not set.): {ROUTE}" in line


def test_a_page_that_fails_is_logged_by_its_route(
    db: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatapi.console.password_pages.Invitation.get_user", lambda *_: 1 / 0)
    assert Client(raise_request_exception=False).get(INVITATION).status_code == 500
    assert [each.getMessage() for each in caplog.records if each.name == "django.request"] == [
        f"Internal Server Error: {ROUTE}"
    ]


def test_many_of_them_are_few_lines(admin_client: Client, written: io.StringIO) -> None:
    for _ in range(3 * MAX_LINES_PER_MINUTE):
        assert admin_client.get(f"{LIST}?digest=a").status_code == 400
    assert len(written.getvalue().splitlines()) == MAX_LINES_PER_MINUTE


def test_a_later_minute_says_how_many_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("chatapi.refusal_log.time.monotonic", lambda: now)
    monkeypatch.setattr("chatapi.refusal_log.MAX_LINES_PER_MINUTE", 1)
    lines = OneLine()

    def record() -> logging.LogRecord:
        return logging.LogRecord("django.security.X", logging.ERROR, "", 1, "refused", None, None)

    assert [lines.filter(record()) for _ in range(3)] == [True, False, False]
    now += 61
    later = record()
    assert lines.filter(later)
    assert later.getMessage() == "refused (2 more lines were left out)"
