"""Prices and amounts: integers, rounded once per line item."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usage.pricing import FREE, Price, Tokens, amount, from_usd, line_items, to_usd, upper_bound

counts = st.integers(0, 10**9)
per_mtok = st.integers(0, 10**15)
prices = st.builds(Price, per_mtok, per_mtok, per_mtok)


def test_a_receipt_has_a_line_for_each_kind_of_token() -> None:
    price = Price(from_usd("2.50"), from_usd("1.25"), from_usd("10"))
    lines = line_items(Tokens(1_000, 500, cached_tokens=200), price)
    assert [(line.name, line.tokens, to_usd(line.amount_nanodollars)) for line in lines] == [
        ("input", 800, "0.002"),
        ("cached_input", 200, "0.00025"),
        ("output", 500, "0.005"),
    ]


def test_each_line_is_rounded_half_up() -> None:
    assert amount(Tokens(1, 0), Price(500_000, 0, 0)) == 1
    assert amount(Tokens(1, 0), Price(499_999, 0, 0)) == 0


def test_more_cached_tokens_than_prompt_tokens_are_all_of_the_prompt() -> None:
    assert [(line.name, line.tokens) for line in line_items(Tokens(5, 0, cached_tokens=9), Price(1, 1, 1))] == [("cached_input", 5)]


@given(counts, counts, counts, prices)
def test_the_hold_is_never_less_than_the_amount(prompt: int, completion: int, cached: int, price: Price) -> None:
    tokens = Tokens(prompt, completion, cached_tokens=cached)
    assert amount(tokens, price) <= upper_bound(prompt, completion, price)


@given(counts, counts)
def test_free_is_free(prompt: int, completion: int) -> None:
    assert upper_bound(prompt, completion, FREE) == 0
    assert amount(Tokens(prompt, completion), FREE) == 0


@given(st.integers(0, 10**15))
def test_dollars_and_nanodollars_are_the_same_number(nanodollars: int) -> None:
    assert from_usd(to_usd(nanodollars)) == nanodollars


@pytest.mark.parametrize("text", ["", "abc", "NaN", "Infinity", "-1", "0.0000000001", "1e9", "1,5"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"dollars|decimal"):
        from_usd(text)
