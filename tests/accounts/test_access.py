"""The one door to tenants' objects: a caller sees their own, and no others."""

from accounts import access
from accounts.models import APIKey
from tests.cast import Person, admit
from usage.models import Generation


def test_the_own_project_is_visible(alice: Person) -> None:
    generation = admit(alice)
    assert access.visible_to(alice.caller, Generation.objects.all()).get() == generation


def test_a_colleague_in_another_project_sees_nothing_of_it(alice: Person, bob: Person) -> None:
    admit(alice)
    assert not access.visible_to(bob.caller, Generation.objects.all()).exists()


def test_a_stranger_sees_nothing_of_it(alice: Person, charlie: Person) -> None:
    admit(alice)
    assert not access.visible_to(charlie.caller, Generation.objects.all()).exists()


def test_a_row_of_the_project_that_names_another_organization_is_not_visible(
    alice: Person, charlie: Person
) -> None:
    generation = admit(alice)
    Generation.objects.filter(pk=generation.pk).update(organization_id=charlie.project.organization_id)
    assert not access.visible_to(alice.caller, Generation.objects.all()).exists()


def test_it_narrows_what_was_asked_for(alice: Person) -> None:
    first, _ = admit(alice), admit(alice)
    assert access.visible_to(alice.caller, Generation.objects.filter(pk=first.pk)).get() == first


def test_the_own_key_is_the_one_that_calls(alice: Person, bob: Person) -> None:
    assert access.own_key(alice.caller) == APIKey.objects.get(pk=alice.api_key.pk)
    assert access.own_key(bob.caller).project == bob.project
