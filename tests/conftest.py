"""The cast: alice owns Acme, bob is her colleague with a project of his own, charlie is a stranger from
Umbrella.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.test import Client
from pytest_django import DjangoDbBlocker

from accounts.models import Organization, Role
from chatapi.models import Deployment, ServedModel
from tests import fake_stripe, migrated_database
from tests.admin_pages import client_of
from tests.cast import PRICE, Person, join
from tests.usage.triggers import let_tests_empty_tables
from usage.books import prices


def pytest_configure() -> None:
    """Use a file as SQLite's test database: threads with their own connections must see committed rows.

    Passwords and clients are made by the thousand, so both are cheap. An example of Hypothesis may take long
    on a busy machine.
    """
    hypothesis.settings.register_profile("tests", deadline=None)
    hypothesis.settings.load_profile("tests")
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.WHITENOISE_AUTOREFRESH = True  # otherwise each new `Client` lists all static files: 12 ms
    database = connections.settings["default"]
    if database["ENGINE"].endswith("sqlite3"):
        database["TEST"]["NAME"] = str(Path(settings.STATE_DIR) / "tests.sqlite3")
        # Nothing of it has to survive the machine, and a connection that ends waits 14 ms for the disk.
        database["OPTIONS"]["init_command"] += "PRAGMA synchronous=OFF;"


@pytest.fixture(scope="session")
def django_db_keepdb(request: pytest.FixtureRequest, django_db_modify_db_settings: None) -> bool:
    """Return whether Django finds its test database: SQLite's is a copy of the migrated one, from which
    Django itself creates PostgreSQL's.
    """
    database = connections["default"]
    if database.vendor == "postgresql":
        database.settings_dict["TEST"]["TEMPLATE"] = migrated_database.template(os.environ["DATABASE_URL"])
        return bool(request.config.getvalue("reuse_db"))
    migrated_database.copy_to(Path(database.settings_dict["TEST"]["NAME"]))
    return True


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Set the database up as pytest-django does, and let tests empty the ledger."""
    let_tests_empty_tables(connection)
    with django_db_blocker.unblock():
        connection_created.connect(_let_transactions_wait)
    with django_db_blocker.unblock():
        _keep_the_vacuum_away()
    connections.close_all()


def _keep_the_vacuum_away() -> None:
    """Disable autovacuum of the hourly usage: a day is closed later if its hours are vacuumed, and a test
    would wait.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE usage_hourlyusage SET (autovacuum_enabled = false)")


def _let_transactions_wait(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Disable PostgreSQL's limit for idle transactions: a test is one transaction, and may be idle while the
    machine is busy.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET idle_in_transaction_session_timeout = 0")


@pytest.fixture
def migrate(transactional_db: None) -> Iterator[Callable[..., None]]:
    """Return a function that migrates to the newest schema, or to the migration that its arguments name.

    The newest schema of all apps is restored at the end: going back in one app undoes migrations of others.
    """

    def to(*name: str) -> None:
        call_command("migrate", *name, verbosity=0)

    yield to
    to()


@pytest.fixture
def acme(db: None) -> Organization:
    """Return the organization of Alice and Bob."""
    return Organization.objects.create(name="Acme")


@pytest.fixture
def alice(acme: Organization) -> Person:
    """Return the owner of Acme."""
    return join("alice", Role.OWNER, acme, "default")


@pytest.fixture
def bob(acme: Organization) -> Person:
    """Return a colleague of Alice, in another project."""
    return join("bob", Role.MEMBER, acme, "research")


@pytest.fixture
def charlie(db: None) -> Person:
    """Return the owner of another organization."""
    return join("charlie", Role.OWNER, Organization.objects.create(name="Umbrella"), "default")


@pytest.fixture
def root(db: None) -> Client:
    """Return a client that is signed in as a superuser."""
    return client_of(User.objects.create_superuser("root"))


@pytest.fixture
def small(db: None) -> ServedModel:
    """Return a model that is served: active, deployed and priced."""
    model = ServedModel.objects.create(id="small", owned_by="acme")
    Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
    prices.change(model.id, PRICE)
    return model


@pytest.fixture
def stripe(settings: Any) -> Iterator[fake_stripe.Stripe]:
    """Run a fake of Stripe, and take payments with it."""
    with fake_stripe.serving() as fake:
        for name, value in fake.environment.items():
            setattr(settings, name.removeprefix("CHATAPI_"), value)
        yield fake
