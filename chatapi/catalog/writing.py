"""Writes the database's catalog as a file from which `loading.load` makes the same rows.

The file leaves out creation times and past prices; future prices are comments.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import date, datetime

import msgspec

from chatapi.catalog import file
from chatapi.models import Deployment, ModelKind, ServedModel
from usage import pricing
from usage.database.clock import database_now
from usage.formatting import moment
from usage.models import Price

_DEFAULTS = msgspec.to_builtins(file.Deployment(engine=""))
_ALWAYS = ("engine", "name", "base_url")


def write() -> str:
    """Return the catalog as TOML. Raises `CatalogError` for an invalid row."""
    now = database_now()
    history: defaultdict[str, list[Price]] = defaultdict(list)
    for price in Price.objects.order_by("model", "effective_from"):
        history[price.model].append(price)
    rows = list(ServedModel.objects.prefetch_related("deployments"))
    head = [
        f"# The catalog of {moment(now)} UTC, with the prices in effect then. "
        "`manage.py loadcatalog` and the admin's import read it.",
        "# api_key_env names environment variables; no key is in this file.",
    ]
    text = "\n".join([*head, *(line for row in rows for line in _model(row, history[row.id], now)), ""])
    try:
        if rows:
            file.parse(text)
    except ValueError as error:
        raise file.CatalogError(
            f"The catalog can't be written as a file, correct the row first: {error}"
        ) from error
    return text


def _model(row: ServedModel, history: Iterable[Price], now: datetime) -> Iterator[str]:
    deployments = list(row.deployments.all())
    yield from ("", "[[models]]")
    yield from _lines(
        {name: getattr(row, name) for name in ("id", "owned_by", "context_window", "max_output_tokens")}
    )
    if row.kind != ModelKind.CHAT:
        yield f'kind = "{row.kind}"'
    optional = {name: getattr(row, name) for name in ("aliases", "deprecated_on", "is_active")}
    yield from _lines({name: value for name, value in optional.items() if value not in ([], None, True)})
    if not deployments:
        yield "deployments = []"
    price = None
    for each in history:
        if each.effective_from <= now:
            price = each.value
        else:
            yield f"# from {moment(each.effective_from)} UTC on: {', '.join(_lines(_price(each.value)))}"
    if price is not None:
        yield "[models.price]"
        yield from _lines(_price(price))
    for deployment in deployments:
        yield "[[models.deployments]]"
        if deployment.encrypted_api_key:
            yield "# Its API key was entered in the admin and is not in this file."
        yield from _lines(_deployment(deployment))


def _price(price: pricing.Price) -> dict[str, object]:
    named = {name.removesuffix("_nanodollars"): value for name, value in asdict(price).items()}
    return {name: pricing.to_usd(value) for name, value in named.items() if value is not None}


def _deployment(row: Deployment) -> dict[str, object]:
    """Return the values that differ from a file's defaults, and the main ones."""
    values = {name: getattr(row, name) for name in file.Deployment.__struct_fields__}
    return {
        name: value
        for name, value in values.items()
        if value != _DEFAULTS.get(name) or (name in _ALWAYS and value)
    }


def _lines(values: Mapping[str, object]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in values.items()]


def _toml(value: object) -> str:
    """Return the value as TOML: JSON, except for tables, dates, and DEL, which JSON does not escape."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return "{ " + ", ".join(_lines(value)) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
