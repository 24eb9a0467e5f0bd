"""The rights of a key, and its two secrets during a rotation; without a server process."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from accounts import access, keys
from accounts.authentication import Caller, look_up, look_up_id
from accounts.errors import KeyChanged, PermissionDenied
from accounts.models import APIKey, KeyScope
from tests.cast import Person, is_let_in

HOUR = timedelta(hours=1)


def narrowed(**rights: Any) -> Caller:
    """Return a caller whose key has these rights."""
    return Caller(1, 1, 1, False, False, "", "UTC", **rights)


def own(person: Person) -> Any:
    """Return the person's key as a queryset."""
    return APIKey.objects.filter(pk=person.api_key.pk)


# ---- scopes and models


def test_a_key_without_scopes_may_do_everything() -> None:
    for scope in KeyScope:
        narrowed().require(scope)
        narrowed(scopes=frozenset(KeyScope.values)).require(scope)


def test_a_key_may_do_what_its_scopes_say_and_a_refusal_names_the_missing_one() -> None:
    caller = narrowed(scopes=frozenset({"models"}))
    caller.require(KeyScope.MODELS)
    with pytest.raises(PermissionDenied, match="lacks the scope 'completions'"):
        caller.require(KeyScope.COMPLETIONS)


def test_a_key_without_a_list_may_use_all_models_and_one_with_a_list_those() -> None:
    assert narrowed().may_use("anything")
    caller = narrowed(allowed_models=frozenset({"small"}))
    assert caller.may_use("small")
    assert not caller.may_use("Small")
    assert not caller.may_use("")


def test_a_key_is_made_with_its_rights(alice: Person) -> None:
    _, secret = keys.create_key(
        alice.project, scopes=["models", "usage"], allowed_models=["small", "org/large"]
    )
    caller = look_up(secret)
    assert (set(caller.scopes), set(caller.allowed_models)) == ({"models", "usage"}, {"small", "org/large"})


@pytest.mark.parametrize("scopes", [["everything"], "models", [1], [None], {"models": 1}])
def test_scopes_that_there_are_not_are_refused(alice: Person, scopes: Any) -> None:
    alice.api_key.scopes = scopes
    with pytest.raises(ValidationError):
        alice.api_key.full_clean()


@pytest.mark.parametrize("names", ["small", [1], [""], ["x" * 129], {"small": 1}])
def test_what_is_no_list_of_names_is_refused(alice: Person, names: Any) -> None:
    alice.api_key.allowed_models = names
    with pytest.raises(ValidationError):
        alice.api_key.full_clean()


def test_a_row_that_older_code_writes_may_do_everything(alice: Person) -> None:
    """Insert a row as older code does, which does not know the columns of rights."""
    known = "project_id, name, digest, is_test, is_admin, default_dialect, created_at"
    with connection.cursor() as cursor:
        table, public = APIKey._meta.db_table, "0" * 12
        cursor.execute(
            f"INSERT INTO {table} (public, {known}) SELECT %s, {known} FROM {table} WHERE id = %s",
            [public, alice.api_key.pk],
        )
    row = APIKey.objects.get(public=public)
    assert (row.scopes, row.allowed_models, row.is_active, row.previous_digest) == ([], [], True, "")


# ---- rotation


def test_a_rotated_key_has_two_secrets_and_is_one_caller(alice: Person) -> None:
    secret = keys.rotate(alice.api_key, timezone.now() + HOUR)
    assert secret != alice.key
    assert look_up(secret) == look_up(alice.key) == look_up_id(alice.api_key.pk)


def test_a_rotation_costs_authentication_no_query(
    alice: Person, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    secret = keys.rotate(alice.api_key, timezone.now() + HOUR)
    for each in (secret, alice.key):
        with django_assert_num_queries(1):
            look_up(each)


def test_the_old_secret_ends_at_its_moment_and_the_new_one_does_not(alice: Person) -> None:
    secret = keys.rotate(alice.api_key, timezone.now() + HOUR)
    own(alice).update(previous_expires_at=timezone.now())
    assert not is_let_in(alice.key)
    assert is_let_in(secret)


def test_the_old_secret_can_end_with_the_rotation_or_before_its_time(alice: Person, bob: Person) -> None:
    assert is_let_in(keys.rotate(alice.api_key, None))
    assert not is_let_in(alice.key)
    secret = keys.rotate(bob.api_key, timezone.now() + HOUR)
    assert keys.end_previous_secrets(own(bob)) == 1
    assert not is_let_in(bob.key)
    assert is_let_in(secret)
    assert keys.end_previous_secrets(own(bob)) == 0


def test_a_second_rotation_ends_the_first_secret(alice: Person) -> None:
    second = keys.rotate(alice.api_key, timezone.now() + HOUR)
    third = keys.rotate(alice.api_key, timezone.now() + HOUR)
    assert [is_let_in(secret) for secret in (alice.key, second, third)] == [False, True, True]


def test_of_two_rotations_of_the_same_secret_one_happens(alice: Person) -> None:
    stale = APIKey.objects.get(pk=alice.api_key.pk)
    secret = keys.rotate(alice.api_key, timezone.now() + HOUR)
    with pytest.raises(KeyChanged):
        keys.rotate(stale, None)
    assert is_let_in(secret)
    assert is_let_in(alice.key)


def test_a_revoked_key_is_not_rotated_and_revoking_ends_both_secrets(alice: Person) -> None:
    secret = keys.rotate(alice.api_key, timezone.now() + HOUR)
    assert keys.revoke(own(alice)) == 1
    assert not is_let_in(secret)
    assert not is_let_in(alice.key)
    with pytest.raises(KeyChanged):
        keys.rotate(alice.api_key, None)


def test_a_secret_with_anothers_public_part_is_refused(alice: Person, bob: Person) -> None:
    keys.rotate(alice.api_key, timezone.now() + HOUR)
    keys.rotate(bob.api_key, None)
    own(bob).update(
        previous_public="0" * 12,
        previous_digest=alice.api_key.previous_digest,
        previous_expires_at=timezone.now() + HOUR,
    )
    assert look_up(alice.key).api_key_id == alice.api_key.pk
    assert not is_let_in(bob.key)


def test_the_database_wants_an_old_secret_to_end(alice: Person) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        own(alice).update(previous_public="0" * 12)


def test_nothing_that_is_kept_of_a_rotation_is_a_secret(alice: Person) -> None:
    secret = keys.rotate(alice.api_key, timezone.now() + HOUR)
    kept = str(own(alice).values().get())
    assert secret[21:] not in kept
    assert alice.key[21:] not in kept


# ---- disabled, and enabled again


def test_a_disabled_key_is_refused_until_it_is_enabled(alice: Person) -> None:
    assert keys.set_active(own(alice), is_active=False) == 1
    assert not is_let_in(alice.key)
    assert not access.usable_keys().filter(pk=alice.api_key.pk).exists()
    assert keys.set_active(own(alice), is_active=True) == 1
    assert is_let_in(alice.key)


def test_a_revoked_key_is_not_enabled(alice: Person) -> None:
    keys.set_active(own(alice), is_active=False)
    keys.revoke(own(alice))
    assert keys.set_active(own(alice), is_active=True) == 0
    assert not is_let_in(alice.key)
