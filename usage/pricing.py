"""Prices and what tokens cost at them, in integers; pure.

A price is nanodollars per million tokens. Each line item is rounded once, half up; the amount is the sum of
the line items.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Literal

NANODOLLARS = 1_000_000_000
TOKENS_PER_PRICE = 1_000_000
MAX_USD = 1_000_000
"""The most of each amount that a person enters: a price per million tokens, a limit or a payment."""
ALL_BASIS_POINTS = 10_000
_NANODOLLAR = Decimal("1e-9")


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, each in nanodollars."""

    input_per_mtok_nanodollars: int
    cached_input_per_mtok_nanodollars: int
    output_per_mtok_nanodollars: int
    reasoning_per_mtok_nanodollars: int | None = None
    """None: reasoning costs what output costs, and is one line with it."""
    cache_write_per_mtok_nanodollars: int | None = None
    """None: tokens written to the cache cost what input costs, and are one line with it."""
    cache_write_1h_per_mtok_nanodollars: int | None = None
    """None: they cost what tokens written for 5 minutes cost, and are one line with them."""

    @classmethod
    def of(cls, row: object) -> "Price":
        """Return the price in the `PRICE_COLUMNS` of a row."""
        return cls(*(getattr(row, name) for name in PRICE_COLUMNS))

    def columns(self) -> dict[str, int | None]:
        """Return the values of `PRICE_COLUMNS`, in their order."""
        return {name: getattr(self, name) for name in PRICE_COLUMNS}


# The columns in which tables keep a price.
PRICE_COLUMNS = tuple(field.name for field in fields(Price))
# The columns that may be None, and the column whose price is charged then.
FALLBACKS = {
    "reasoning_per_mtok_nanodollars": "output_per_mtok_nanodollars",
    "cache_write_per_mtok_nanodollars": "input_per_mtok_nanodollars",
    "cache_write_1h_per_mtok_nanodollars": "cache_write_per_mtok_nanodollars",
}

# The columns by what is charged at them: tokens of the prompt, and those of the completion.
_INPUTS = (
    "input_per_mtok_nanodollars",
    "cached_input_per_mtok_nanodollars",
    "cache_write_per_mtok_nanodollars",
    "cache_write_1h_per_mtok_nanodollars",
)
_OUTPUTS = ("output_per_mtok_nanodollars", "reasoning_per_mtok_nanodollars")
_inputs, _outputs = attrgetter(*_INPUTS), attrgetter(*_OUTPUTS)
# A price that `upper_bound` does not know would be charged without a hold.
assert {*_INPUTS, *_OUTPUTS} == {*PRICE_COLUMNS}, "a price is in no hold"

FREE = Price(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a request used.

    Cached and written tokens are different parts of the prompt; reasoning tokens are part of the completion.
    Tokens written for an hour are part of those written.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None

    @classmethod
    def of(cls, row: object) -> "Tokens":
        """Return the counts in the `TOKEN_COLUMNS` of a row."""
        return cls(*(getattr(row, name) for name in TOKEN_COLUMNS))

    def columns(self) -> dict[str, int | None]:
        """Return the values of `TOKEN_COLUMNS`, in their order."""
        return {name: getattr(self, name) for name in TOKEN_COLUMNS}


# The columns in which tables keep token counts.
TOKEN_COLUMNS = tuple(field.name for field in fields(Tokens))
# The most that these columns hold on PostgreSQL.
MAX_TOKENS = 2**31 - 1


LineName = Literal["input", "cached_input", "cache_write", "cache_write_1h", "output", "reasoning"]


@dataclass(frozen=True, slots=True)
class LineItem:
    """One line of a receipt."""

    name: LineName
    tokens: int
    price_per_mtok_nanodollars: int
    amount_nanodollars: int


def line_items(tokens: Tokens, price: Price) -> list[LineItem]:
    """Return the receipt's lines: a kind of input, output or reasoning with its own price each. Their tokens
    add up to those of prompt and completion. Lines without tokens are left out.
    """
    cached = min(tokens.cached_tokens or 0, tokens.prompt_tokens)
    written = min(tokens.cache_write_tokens or 0, tokens.prompt_tokens - cached)
    written_1h = min(tokens.cache_write_1h_tokens or 0, written)
    reasoning = min(tokens.reasoning_tokens or 0, tokens.completion_tokens)
    per_write, per_write_1h = (
        price.cache_write_per_mtok_nanodollars,
        price.cache_write_1h_per_mtok_nanodollars,
    )
    per_reasoning = price.reasoning_per_mtok_nanodollars
    # Tokens without a price of their own are charged in the line of their fallback.
    written_1h = 0 if per_write_1h is None else written_1h
    written = written_1h if per_write is None else written
    reasoning = 0 if per_reasoning is None else reasoning
    lines: list[tuple[LineName, int, int]] = [
        ("input", tokens.prompt_tokens - cached - written, price.input_per_mtok_nanodollars),
        ("cached_input", cached, price.cached_input_per_mtok_nanodollars),
        ("cache_write", written - written_1h, per_write or 0),
        ("cache_write_1h", written_1h, per_write_1h or 0),
        ("output", tokens.completion_tokens - reasoning, price.output_per_mtok_nanodollars),
        ("reasoning", reasoning, per_reasoning or 0),
    ]
    return [
        LineItem(name, count, per_mtok, _cost(count, per_mtok)) for name, count, per_mtok in lines if count
    ]


def amount(tokens: Tokens, price: Price) -> int:
    """Return what the tokens cost, in nanodollars."""
    return sum(item.amount_nanodollars for item in line_items(tokens, price))


def upper_bound(prompt_tokens: int, output_tokens: int, price: Price) -> int:
    """Return the most that a request can cost, in nanodollars. Only a free request holds nothing."""
    inputs = _inputs(price)
    # An empty prompt is not free where prompts are not.
    held_for_input = max(_most(prompt_tokens, inputs), int(any(inputs)))
    return held_for_input + _most(output_tokens, _outputs(price))


def discounted(price: Price, basis_points: int) -> Price:
    """Return the price less the basis points, each of its numbers rounded once, half up."""
    if not basis_points:
        return price
    full = price.columns().values()
    rest = ALL_BASIS_POINTS - basis_points
    # Half of the divisor is added before the division: rounded half up, in integers.
    less = [
        None if amount is None else (amount * rest + ALL_BASIS_POINTS // 2) // ALL_BASIS_POINTS
        for amount in full
    ]
    return Price(*less)  # type: ignore[arg-type]  # only the optional ones are None


def from_usd(text: str) -> int:
    """Return US dollars, such as "0.15", in nanodollars; raises `ValueError` if inexact or out of range."""
    try:
        # Python reads the slip 1_50 as 150, not as 1.50, and takes digits of all scripts.
        if "_" in text or not text.isascii():
            raise InvalidOperation
        usd = Decimal(text)
    except InvalidOperation:
        raise ValueError(f'{text!r} is not an amount of US dollars, such as "0.15"') from None
    if not usd.is_finite() or not 0 <= usd <= MAX_USD:
        raise ValueError(f"{text!r} must be between 0 and {MAX_USD} US dollars")
    # Compared as decimals: as a fraction, 1e-999999999 has a billion digits, and would take minutes.
    cut = usd.quantize(_NANODOLLAR)
    if cut != usd:
        raise ValueError(f"{text!r} has more than 9 decimal places")
    return int(cut * NANODOLLARS)  # exact: 16 digits of the 28 that a product of decimals may have


def to_usd(amount_nanodollars: int) -> str:
    """Return nanodollars as US dollars, exact, without trailing zeros: 1_500_000 is "0.0015"."""
    text = f"{Decimal(amount_nanodollars) / NANODOLLARS:.9f}".rstrip("0")
    return text.rstrip(".") or "0"


def _cost(tokens: int, per_mtok: int) -> int:
    return (tokens * per_mtok + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE


def _most(tokens: int, prices: Sequence[int | None]) -> int:
    """Return the most that tokens cost on one line, or split over lines at these prices.

    A whole price per token is never rounded; each line at another price may be, by half a nanodollar up. A
    further line has a token at least, so it costs more only if it is rounded up by more than it is cheaper.
    """
    lines = [price for price in prices if price is not None]
    dear = max(lines)
    alone = -(-tokens * dear // TOKENS_PER_PRICE)
    if tokens < 2 or len(lines) == 1:
        return alone
    rounding = sum(
        max(0, price - dear + TOKENS_PER_PRICE // 2) for price in lines if price % TOKENS_PER_PRICE
    )
    return max(alone, (tokens * dear + rounding) // TOKENS_PER_PRICE)
