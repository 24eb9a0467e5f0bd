"""Prices and what tokens cost at them, in integers; pure.

A price is nanodollars per million tokens. Each line item is rounded once, half up; the amount is the sum of its line items.
"""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

NANODOLLARS = 1_000_000_000
TOKENS_PER_PRICE = 1_000_000
MAX_USD_PER_MTOK = 1_000_000
ALL_BASIS_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, each in nanodollars."""

    input_per_mtok_nanodollars: int
    cached_input_per_mtok_nanodollars: int
    output_per_mtok_nanodollars: int
    reasoning_per_mtok_nanodollars: int | None = None
    """None: reasoning costs what output costs, and is one line with it."""


FREE = Price(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a request used. Cached tokens are a part of the prompt, reasoning tokens a part of the completion."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class LineItem:
    """One line of a receipt."""

    name: str
    tokens: int
    price_per_mtok_nanodollars: int
    amount_nanodollars: int


def line_items(tokens: Tokens, price: Price) -> list[LineItem]:
    """The receipt's lines: fresh input, cached input, output, reasoning if it has its own price; lines without tokens are left out."""
    cached = min(tokens.cached_tokens or 0, tokens.prompt_tokens)
    reasoning = min(tokens.reasoning_tokens or 0, tokens.completion_tokens)
    per_reasoning = price.reasoning_per_mtok_nanodollars
    if per_reasoning is None:
        reasoning, per_reasoning = 0, 0
    lines = [
        ("input", tokens.prompt_tokens - cached, price.input_per_mtok_nanodollars),
        ("cached_input", cached, price.cached_input_per_mtok_nanodollars),
        ("output", tokens.completion_tokens - reasoning, price.output_per_mtok_nanodollars),
        ("reasoning", reasoning, per_reasoning),
    ]
    return [LineItem(name, count, per_mtok, _cost(count, per_mtok)) for name, count, per_mtok in lines if count]


def amount(tokens: Tokens, price: Price) -> int:
    """What the tokens cost, in nanodollars."""
    return sum(item.amount_nanodollars for item in line_items(tokens, price))


def upper_bound(prompt_tokens: int, output_tokens: int, price: Price) -> int:
    """The most that a request can cost, in nanodollars: what is held for it. Only what is free holds nothing."""
    dearest_input = max(price.input_per_mtok_nanodollars, price.cached_input_per_mtok_nanodollars)
    dearest_output = max(price.output_per_mtok_nanodollars, price.reasoning_per_mtok_nanodollars or 0)
    held = _cost_up(prompt_tokens, dearest_input) + _cost_up(output_tokens, dearest_output)
    # Where the tokens may be split over two lines, each of these may be rounded up by half a nanodollar.
    return held + bool(dearest_input) + bool(price.reasoning_per_mtok_nanodollars)


def discounted(price: Price, basis_points: int) -> Price:
    """The price less so many hundredths of a percent, each of its numbers rounded once, half up."""
    if not basis_points:
        return price
    reasoning = price.reasoning_per_mtok_nanodollars
    return Price(
        _less(price.input_per_mtok_nanodollars, basis_points),
        _less(price.cached_input_per_mtok_nanodollars, basis_points),
        _less(price.output_per_mtok_nanodollars, basis_points),
        None if reasoning is None else _less(reasoning, basis_points),
    )


def from_usd(text: str) -> int:
    """US dollars as a decimal string ("0.15") in nanodollars; raises `ValueError` when it is not exact or out of range."""
    try:
        usd = Decimal(text)
    except InvalidOperation:
        raise ValueError(f'{text!r} is not an amount of US dollars, such as "0.15"') from None
    if not usd.is_finite() or not 0 <= usd <= MAX_USD_PER_MTOK:
        raise ValueError(f"{text!r} must be between 0 and {MAX_USD_PER_MTOK} US dollars")
    nanodollars = Fraction(usd) * NANODOLLARS  # exact: a product of decimals is rounded to 28 digits
    if nanodollars.denominator != 1:
        raise ValueError(f"{text!r} has more than 9 decimal places")
    return int(nanodollars)


def to_usd(amount_nanodollars: int) -> str:
    """Nanodollars as US dollars, exact, without needless zeros: 1_500_000 is "0.0015"."""
    text = f"{Decimal(amount_nanodollars) / NANODOLLARS:.9f}".rstrip("0")
    return text.rstrip(".") or "0"


def _cost(tokens: int, per_mtok: int) -> int:
    return (tokens * per_mtok + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE


def _cost_up(tokens: int, per_mtok: int) -> int:
    return -(-tokens * per_mtok // TOKENS_PER_PRICE)


def _less(per_mtok: int, basis_points: int) -> int:
    return (per_mtok * (ALL_BASIS_POINTS - basis_points) + ALL_BASIS_POINTS // 2) // ALL_BASIS_POINTS
