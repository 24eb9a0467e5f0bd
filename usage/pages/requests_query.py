"""What the list of requests reads from its address: which requests to show."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Literal
from uuid import UUID

from usage import insights, pricing
from usage.insights import RequestFilters
from usage.models import UsageSource
from usage.pages.page_query import TIME, Chip, address, chips, filters_in, filters_query, only, text_in

_OWN = {
    "dialect": "dialect",
    "source": "usage source",
    "deployment": "deployment",
    "min": "cost from $",
    "max": "cost to $",
}
_RANGE = TIME[:3]
_TIME = (*TIME, "time")
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


def generation_id_in(text: str) -> UUID | None:
    """The generation's id that is somewhere in the text, in any form that a client's log may have it in."""
    found = _UUID.search(text.lower())
    return UUID(found[0]) if found else None


def parse(query: Mapping[str, str], now: datetime) -> RequestFilters:
    """The filters that an address asks for; raises `ValueError` with a text for its reader. Without a range:
    all time.
    """
    over = insights.parse_range(query, now) if only(query, _RANGE) else None
    return RequestFilters(
        **asdict(filters_in(query)),
        time=_time(query.get("time")),
        dialect=_dialect(query.get("dialect")),
        usage_source=_source(query.get("source")),
        deployment=text_in(query, "deployment"),
        since=over.start if over else None,
        until=over.end if over else None,
        min_nanodollars=_amount(query, "min"),
        max_nanodollars=_amount(query, "max"),
        id=_generation_id(query.get("id")),
    )


def complete(query: Mapping[str, str], filters: RequestFilters) -> dict[str, object]:
    """The query that asks for the same, without a place in the list."""
    return {**only(query, (*_TIME, *_OWN)), **filters_query(filters)}


def chips_of(query: Mapping[str, str], filters: RequestFilters) -> list[Chip]:
    """All filters that are set, each with the address without it."""
    asked = complete(query, filters)
    own = [
        Chip(f"{text}: {query[name]}", _without(asked, (name,)))
        for name, text in _OWN.items()
        if query.get(name)
    ]
    if only(query, _RANGE):
        own.append(Chip(_range(query, filters), _without(asked, _TIME)))
    return [*chips("requests", asked, filters), *own]


def _range(query: Mapping[str, str], filters: RequestFilters) -> str:
    """The range of time in words."""
    time = only(query, (*_RANGE, "time_zone"))
    text = " ".join(f"{name} {value}" for name, value in time.items())
    if set(time) == {"days"}:
        text = "today" if time["days"] == "1" else f"last {time['days']} days"
    return f"settled: {text}" if filters.time == "settled" else text


def _without(asked: Mapping[str, object], names: tuple[str, ...]) -> str:
    return address("requests", {name: value for name, value in asked.items() if name not in names})


def _time(name: str | None) -> Literal["admitted", "settled"]:
    match name or "admitted":
        case "admitted":
            return "admitted"
        case "settled":
            return "settled"
        case other:
            raise ValueError(f"time: {other[:40]!r} is neither 'admitted' nor 'settled'.")


def _dialect(name: str | None) -> str | None:
    if name and not re.fullmatch(r"[a-z]{1,16}", name):
        raise ValueError(f"dialect: {name[:40]!r} is not the name of one.")
    return name or None


def _source(name: str | None) -> str | None:
    if name and name not in UsageSource.values:
        raise ValueError(f"source: {name[:40]!r} is none of {', '.join(UsageSource.values)}.")
    return name or None


def _amount(query: Mapping[str, str], name: str) -> int | None:
    text = (query.get(name) or "").strip().removeprefix("$")
    if not text:
        return None
    if not (text.isascii() and len(text) < 32):
        raise ValueError(f"{name}: {text[:40]!r} is not an amount of US dollars.")
    try:
        return pricing.from_usd(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}.") from error


def _generation_id(text: str | None) -> UUID | None:
    if not (text or "").strip():
        return None
    found = generation_id_in(text or "")
    if found is None:
        raise ValueError(f"id: {(text or '')[:80]!r} holds no request's id, such as chatcmpl-0198….")
    return found
