"""`manage.py doctor`: check the whole installation; exit 1 if something is wrong."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from chatapi.checks.urls import check_redis_urls
from chatapi.delta_stream import StreamUnavailable
from chatapi.doctor import (
    client_certificates,
    configuration,
    failed_statements,
    notifications,
    payment,
    served_models,
    stores,
)
from chatapi.doctor.finding import Finding, Level, wrong
from chatapi.serving.preflight import CannotStart

SUBJECT_WIDTH = 13


class Command(BaseCommand):
    help = (
        "Check everything that the service needs: settings, database, migrations, Redis, clocks, processes, "
        "mail, webhooks, usage for Stripe, statements, certificates, prices, proxies and upstreams. It "
        "changes nothing and sends no mail. Each line is ok, a warning (the service runs, but not as it "
        "should) or WRONG (requests fail, or books or secrets are at risk), and the next line says what to "
        "do. Exits with 1 if anything is WRONG, else with 0. Run it with the environment of a worker, "
        "because only workers have the keys of upstreams: with compose, `docker compose exec worker python "
        "manage.py doctor`."
    )
    requires_system_checks = []  # it reports them itself

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = "Example: manage.py doctor --no-upstreams"
        parser.add_argument(
            "--no-upstreams",
            action="store_true",
            help="don't call upstreams; without this, each active deployment is asked for one token, "
            "which your provider may charge, all of them within about a minute",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        levels: Counter[Level] = Counter()
        for finding in _findings(calls_upstreams=not options["no_upstreams"]):
            levels[finding.level] += 1
            self.stdout.write(f"{finding.level:<8} {finding.subject:<{SUBJECT_WIDTH}} {finding.text}")
            if finding.remedy:
                self.stdout.write(f"{'':<8} {'':<{SUBJECT_WIDTH}} -> {finding.remedy}")
            self.stdout.flush()
        warnings = f"{levels[Level.WARNING]} warning{'s' if levels[Level.WARNING] != 1 else ''}"
        self.stdout.write(f"{levels[Level.WRONG]} wrong, {warnings}, {levels[Level.OK]} ok.")
        if levels[Level.WRONG]:
            sys.exit(1)


def _findings(*, calls_upstreams: bool) -> Iterator[Finding]:
    yield from configuration.check_settings()
    yield from stores.check_disk()
    has_database = True
    for check in (stores.check_database, stores.check_migrations):
        if has_database:
            found = list(_explained("database", check))
            has_database = not any(each.level is Level.WRONG for each in found)
            yield from found
    if has_database:
        yield from _explained("database", stores.check_database_settings)
        yield from _explained("replica", stores.check_replica)
    # URLs that are none are reported among the settings.
    has_redis = not check_redis_urls() and (yield from stores.check_redis())
    if has_redis:
        yield from _explained("Redis", lambda: [stores.check_redis_clock()])
        yield from _explained("Redis", lambda: [stores.check_processes()])
    yield from configuration.check_proxies()
    yield from notifications.check_mail()
    if has_database:
        yield from _explained("database", lambda: [stores.check_database_clock()])
        yield from _explained("database", notifications.check_deliveries)
        yield from _explained("database", notifications.check_alerts)
        yield from _explained("database", payment.check_reported_usage)
        yield from _explained("database", failed_statements.check_statements)
        yield from _explained("database", client_certificates.check_client_certificates)
        yield from _explained("database", served_models.check_catalog)
        yield from _explained("database", served_models.check_deployments)
        if has_redis:
            yield from _explained("Redis", served_models.check_places)
        yield from _explained("database", served_models.check_keys)
        if calls_upstreams:
            yield from _explained("database", served_models.check_upstreams)
    connection.close()


def _explained(subject: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the check's findings; an error of its store is one of them."""
    try:
        yield from check()
    except CannotStart as error:
        problem, _, remedy = str(error).rpartition(": ")  # the server's words may have a colon, too
        yield wrong(subject, f"{problem[:1].upper()}{problem[1:]}.", f"{remedy[:1].upper()}{remedy[1:]}")
    except (DatabaseError, RedisError, StreamUnavailable) as error:
        yield wrong(subject, f"It does not answer any more ({error}).", "Run the command again.")
