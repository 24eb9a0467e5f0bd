"""The cast: alice owns Acme, bob is her colleague with a project of his own, charlie is a stranger from
Umbrella.
"""

from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.test import Client
from pytest_django import DjangoDbBlocker

from accounts.models import Organization, Role
from chatapi.models import Deployment, ServedModel
from tests.admin_pages import client_of
from tests.cast import PRICE, Person, join
from tests.usage.emptying import let_tests_empty_tables
from usage.books import prices


def pytest_configure() -> None:
    """A file as the test database: threads of their own connections must see what a test has committed."""
    database = connections.settings["default"]
    if database["ENGINE"].endswith("sqlite3"):
        database["TEST"]["NAME"] = str(Path(settings.STATE_DIR) / "tests.sqlite3")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """As pytest-django sets the database up; the ledger lets itself be emptied between tests."""
    let_tests_empty_tables(connection)
    with django_db_blocker.unblock():
        connection_created.connect(_let_transactions_wait)
    with django_db_blocker.unblock():
        _keep_the_vacuum_away()
    connections.close_all()


def _keep_the_vacuum_away() -> None:
    """A day is not closed while the server vacuums its hours, but later: a test would have to wait for it."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE usage_hourlyusage SET (autovacuum_enabled = false)")


def _let_transactions_wait(connection: BaseDatabaseWrapper, **_: object) -> None:
    """A test is one transaction, and idle for as long as the machine is busy with something else."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET idle_in_transaction_session_timeout = 0")


@pytest.fixture
def acme(db: None) -> Organization:
    """Alice's and Bob's organization."""
    return Organization.objects.create(name="Acme")


@pytest.fixture
def alice(acme: Organization) -> Person:
    """She owns Acme."""
    return join("alice", Role.OWNER, acme, "default")


@pytest.fixture
def bob(acme: Organization) -> Person:
    """Alice's colleague, in another project."""
    return join("bob", Role.MEMBER, acme, "research")


@pytest.fixture
def charlie(db: None) -> Person:
    """A stranger."""
    return join("charlie", Role.OWNER, Organization.objects.create(name="Umbrella"), "default")


@pytest.fixture
def root(db: None) -> Client:
    """A client that is signed in as a superuser."""
    return client_of(User.objects.create_superuser("root"))


@pytest.fixture
def small(db: None) -> ServedModel:
    """A model that is served: active, deployed and priced."""
    model = ServedModel.objects.create(id="small", owned_by="acme")
    Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
    prices.change(model.id, PRICE)
    return model
