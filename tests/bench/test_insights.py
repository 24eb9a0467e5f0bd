"""The bench of pages fails for a page that is slow, sends too many queries or is too heavy, and names it."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.urls import resolve

from bench import page_routes
from bench.insights_reads import Cost, busiest_key, judged
from tests import page_paths

GOOD = Cost(ms=900, queries=12, kb=149, is_page=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ms": 1_001}, "BEYOND the bounds: wrong, 1001 ms."),
        ({"queries": 13}, "BEYOND the bounds: wrong, 13 queries."),
        ({"kb": 151}, "BEYOND the bounds: wrong, 151 kB."),
    ],
)
def test_what_exceeds_a_bound_is_named(
    change: dict[str, Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not judged([("good", GOOD), ("wrong", GOOD._replace(**change))])
    assert text in capsys.readouterr().out


def test_a_route_may_be_heavy(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged([("good", GOOD), ("route", GOOD._replace(kb=400, is_page=False))])
    assert "The heaviest page: good, 149 kB of at most 150." in capsys.readouterr().out


def test_the_slower_of_two_readers_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert not judged([("page", GOOD._replace(ms=1_001)), ("page", GOOD)])
    assert "The slowest page or route: page, 1001 ms of at most 1000." in capsys.readouterr().out


# Routes of mailed links, second factors and deliveries of webhooks, of which there are no rows.
WITHOUT_ROWS = {
    "invitation", "accept", "new_password", "confirm_sign_up", "confirm_address", "openid_connect_login",
    "openid_connect_callback", "mfa_remove_webauthn", "replay_webhook", "webhook_replay",
}  # fmt: skip


@pytest.mark.django_db
def test_every_page_is_read() -> None:
    call_command("seedusage", generations=200, unsealed=True, verbosity=0)
    project, key = busiest_key()
    page_routes.furnish(project, User.objects.create_user("bench-owner"))
    paths = [path for path, _ in (*page_routes.of_admin(key), *page_routes.of_console(key))]
    read = {resolve(path).route for path in paths}
    routes = [each for below in ("admin/", "console/") for each in page_paths.routes(below)]
    missing = {name for name, route in routes if route not in read and not page_routes.NO_PAGE.search(name)}
    assert missing == WITHOUT_ROWS
