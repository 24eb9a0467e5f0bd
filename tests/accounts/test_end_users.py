"""The names of end users as rows have them."""

import pytest

from accounts import end_users


@pytest.mark.parametrize("name", ["ann", "Ann Lee", "ann@example.com", "ü" * 128, "sha256:x"])
def test_a_short_printable_name_stays(name: str) -> None:
    assert end_users.stored_name(name, is_hashed=False) == name


@pytest.mark.parametrize("name", [None, ""])
def test_no_name_is_none(name: str | None) -> None:
    assert end_users.stored_name(name, is_hashed=True) is None


@pytest.mark.parametrize("name", ["a" * 129, "a\0", "a\n", "\u202e", "\ud800"])
def test_others_are_digests(name: str) -> None:
    stored = end_users.stored_name(name, is_hashed=False)
    assert stored == end_users.digest(name)
    assert len(stored) <= 128
