"""Keys as texts: a generated key parses, a damaged one does not."""

import re
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accounts import api_keys

KEY = "ck_live_4fGh0123wxYZ_0123456789ABCDEFGHIJKLMNOPQRSTUV0LDXQK"
ALPHABET = string.ascii_letters + string.digits


@given(st.booleans())
def test_a_generated_key_parses(is_test: bool) -> None:
    key = api_keys.generate(is_test=is_test)
    parsed = api_keys.parse(key)
    assert parsed is not None
    assert parsed.is_test is is_test
    assert key.startswith(f"ck_{'test' if is_test else 'live'}_{parsed.public}_")


@given(st.integers(min_value=0, max_value=len(KEY) - 1), st.sampled_from(ALPHABET + "_-é٣ \n\x00"))
def test_one_wrong_character_is_noticed(position: int, character: str) -> None:
    damaged = KEY[:position] + character + KEY[position + 1 :]
    assume(damaged != KEY)
    assert api_keys.parse(damaged) is None


@given(st.integers(min_value=8, max_value=len(KEY) - 2))
def test_two_swapped_characters_are_noticed(position: int) -> None:
    swapped = KEY[:position] + KEY[position + 1] + KEY[position] + KEY[position + 2 :]
    assume(swapped != KEY)
    assert api_keys.parse(swapped) is None


@given(st.text())
def test_any_text_is_refused_without_an_exception(text: str) -> None:
    assert api_keys.parse(text) is None


@given(st.from_regex(r"ck_(live|test)_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}", fullmatch=True))
def test_a_made_up_key_of_the_right_form_is_refused_by_its_checksum(key: str) -> None:
    assume(key[-6:] != api_keys._checksum(key[:-6]))
    assert api_keys.parse(key) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ck_live_",
        KEY + "0",
        " " + KEY,
        KEY + "\n",
        KEY[:-1],
        KEY.replace("live", "test"),
        KEY.upper(),
        KEY * 100,
    ],
)
def test_almost_keys_are_refused(key: str) -> None:
    assert api_keys.parse(key) is None


def test_two_keys_are_never_the_same() -> None:
    assert len({api_keys.generate(is_test=False) for _ in range(1_000)}) == 1_000


def test_the_digest_depends_on_key_and_pepper_and_shows_neither() -> None:
    digest = api_keys.digest(KEY, "pepper")
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert digest == api_keys.digest(KEY, "pepper")
    assert len({digest, api_keys.digest(KEY, "salt"), api_keys.digest(KEY[:-1] + "?", "pepper")}) == 3


def test_the_redacted_key_shows_four_characters_of_its_public_part() -> None:
    parsed = api_keys.parse(KEY)
    assert parsed
    assert api_keys.redacted(parsed.public, is_test=parsed.is_test) == KEY[:12] + "…"
