"""Prices and amounts: integers, rounded once per line item."""

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usage.pricing import FREE, Price, Tokens, amount, discounted, from_usd, line_items, to_usd, upper_bound

counts = st.integers(0, 10**9)
per_mtok = st.integers(0, 10**15)
maybe = st.none() | per_mtok
prices = st.builds(Price, per_mtok, per_mtok, per_mtok, maybe, maybe, maybe)
details = st.none() | counts
used = st.builds(Tokens, counts, counts, details, details, details, details)


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
    assert [
        (line.name, line.tokens) for line in line_items(Tokens(5, 0, cached_tokens=9), Price(1, 1, 1))
    ] == [("cached_input", 5)]


def test_reasoning_is_a_line_of_its_own_only_where_it_has_a_price() -> None:
    tokens = Tokens(0, 500, reasoning_tokens=200)
    own = line_items(tokens, Price(0, 0, from_usd("10"), from_usd("20")))
    assert [(line.name, line.tokens, to_usd(line.amount_nanodollars)) for line in own] == [
        ("output", 300, "0.003"),
        ("reasoning", 200, "0.004"),
    ]
    assert [(line.name, line.tokens) for line in line_items(tokens, Price(0, 0, 1))] == [("output", 500)]


@pytest.mark.parametrize(
    ("usd", "tokens", "bill"),
    [
        (("3", "0.30", "15", "3.75", "6"), Tokens(3 + 12_304, 550, 0, None, 12_304, 0), "0.054399"),
        (("5", "0.50", "25", "6.25", "10"), Tokens(6 + 159_217, 2_745, 0, None, 159_217), "1.06376125"),
        (("5", "0.50", "25", "6.25", "10"), Tokens(6 + 200, 0, 0, None, 200, 200), "0.00203"),
    ],
)
def test_real_bills_with_cache_writes_are_reproduced(usd: tuple[str, ...], tokens: Tokens, bill: str) -> None:
    first, cached, output, write, write_1h = map(from_usd, usd)
    price = Price(first, cached, output, None, write, write_1h)
    assert to_usd(amount(tokens, price)) == bill


@pytest.mark.parametrize(
    ("write", "write_1h", "lines"),
    [
        (None, None, {"input": 80, "cached_input": 20}),
        (7, None, {"input": 30, "cached_input": 20, "cache_write": 50}),
        (7, 9, {"input": 30, "cached_input": 20, "cache_write": 40, "cache_write_1h": 10}),
        (None, 9, {"input": 70, "cached_input": 20, "cache_write_1h": 10}),
    ],
)
def test_written_tokens_without_a_price_are_charged_as_the_next_cheaper_kind(
    write: int | None, write_1h: int | None, lines: dict[str, int]
) -> None:
    tokens = Tokens(100, 0, 20, None, 50, 10)
    found = line_items(tokens, Price(1, 1, 1, None, write, write_1h))
    assert {line.name: line.tokens for line in found} == lines


@given(used, prices)
def test_the_kinds_add_up_and_the_bill_is_the_sum_of_its_lines(tokens: Tokens, price: Price) -> None:
    lines = line_items(tokens, price)
    outputs = [line.tokens for line in lines if line.name in ("output", "reasoning")]
    assert sum(line.tokens for line in lines) - sum(outputs) == tokens.prompt_tokens
    assert sum(outputs) == tokens.completion_tokens
    assert all(line.tokens > 0 for line in lines)
    assert sum(line.amount_nanodollars for line in lines) == amount(tokens, price)


@given(used, prices)
def test_the_hold_is_never_less_than_the_amount(tokens: Tokens, price: Price) -> None:
    assert amount(tokens, price) <= upper_bound(tokens.prompt_tokens, tokens.completion_tokens, price)


few = st.integers(0, 4)
small = st.integers(0, 4).map(lambda half: half * 500_000) | st.integers(0, 2_000_000)
small_prices = st.builds(Price, small, small, small, st.none() | small, st.none() | small, st.none() | small)


@given(few, few, small_prices)
def test_no_split_of_few_tokens_is_dearer_than_the_hold(prompt: int, completion: int, price: Price) -> None:
    splits = [
        Tokens(prompt, completion, cached, reasoning, written, written_1h)
        for cached in range(prompt + 1)
        for written in range(prompt - cached + 1)
        for written_1h in range(written + 1)
        for reasoning in range(completion + 1)
    ]
    assert max(amount(tokens, price) for tokens in splits) <= upper_bound(prompt, completion, price)


@given(used, counts, prices)
def test_the_hold_is_enough_for_fewer_tokens_too(tokens: Tokens, more: int, price: Price) -> None:
    held = upper_bound(tokens.prompt_tokens + more, tokens.completion_tokens + more, price)
    assert amount(tokens, price) <= held


@pytest.mark.parametrize("cached", ["10", "2.50", "0"])
@pytest.mark.parametrize("reasoning", [None, "30", "60"])
def test_at_whole_prices_per_token_the_hold_is_exact(cached: str, reasoning: str | None) -> None:
    price = Price(
        from_usd("10"), from_usd(cached), from_usd("30"), None if reasoning is None else from_usd(reasoning)
    )
    dearest = 60 if reasoning == "60" else 30
    assert upper_bound(86, 1_000, price) == 86 * 10_000 + 1_000 * dearest * 1_000


@given(counts, prices)
def test_only_what_is_free_holds_nothing(prompt: int, price: Price) -> None:
    assert bool(upper_bound(prompt, 1, price)) == any(astuple(price))


@given(prices, st.integers(0, 10_000))
def test_a_discount_takes_its_part_of_every_price(price: Price, basis_points: int) -> None:
    less = discounted(price, basis_points)
    for before, after in zip(astuple(price), astuple(less), strict=True):
        assert (before is None) == (after is None)
        if before is not None:
            assert abs(after * 10_000 - before * (10_000 - basis_points)) <= 5_000
    assert discounted(price, 0) == price
    assert not any(astuple(discounted(price, 10_000)))


@given(counts, counts)
def test_free_is_free(prompt: int, completion: int) -> None:
    assert upper_bound(prompt, completion, FREE) == 0
    assert amount(Tokens(prompt, completion), FREE) == 0


@given(st.integers(0, 10**15))
def test_dollars_and_nanodollars_are_the_same_number(nanodollars: int) -> None:
    assert from_usd(to_usd(nanodollars)) == nanodollars


@pytest.mark.parametrize(
    "text", ["", "abc", "NaN", "Infinity", "-1", "0.0000000001", "1e9", "1,5", "1_5", "１５"]
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"dollars|decimal"):
        from_usd(text)


@pytest.mark.parametrize(
    "text", ["1e-10", "1e-999999999", "0.1500000000000000000000000000000001", "999999.9999999999"]
)
def test_what_is_finer_than_a_nanodollar_is_refused_however_small(text: str) -> None:
    with pytest.raises(ValueError, match="has more than 9 decimal places"):
        from_usd(text)


@pytest.mark.parametrize("text", ["1e999999999", "1000000.000000001"])
def test_what_is_too_much_is_refused_however_much(text: str) -> None:
    with pytest.raises(ValueError, match="must be between 0 and 1000000 US dollars"):
        from_usd(text)


@pytest.mark.parametrize(
    ("text", "nanodollars"),
    [
        ("0.15" + "0" * 99, 150_000_000),
        ("1E+6", 10**15),
        ("0e-999999999", 0),
        ("0e999999999", 0),
        ("999999.999999999", 10**15 - 1),
    ],
)
def test_the_same_amount_may_be_written_in_many_ways(text: str, nanodollars: int) -> None:
    assert from_usd(text) == nanodollars
