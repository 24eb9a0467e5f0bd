"""Makes the database's catalog what a catalog file says, and tells what that changed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from django.db import transaction
from msgspec import UNSET

from chatapi.catalog.file import Catalog, Model
from chatapi.catalog.file import Deployment as FileDeployment
from chatapi.models import Deployment, ServedModel
from usage import prices, pricing


@dataclass(frozen=True, slots=True)
class Report:
    """What loading did."""

    lines: list[str]
    """One for each model of the file: created, changed and how, or unchanged."""
    missing: list[str]
    """Active models that the file does not have."""


def load(catalog: Catalog, *, deactivate_missing: bool = False) -> Report:
    """Apply the catalog in one transaction; models that it does not have are left alone, or deactivated when asked."""
    with transaction.atomic():
        current = prices.current()
        lines = [_load_model(model, current.get(model.id)) for model in catalog.models]
        others = ServedModel.objects.filter(is_active=True).exclude(pk__in=[model.id for model in catalog.models])
        missing = list(others.values_list("id", flat=True))
        if deactivate_missing:
            others.update(is_active=False)
    return Report(lines, missing)


def _load_model(model: Model, price: pricing.Price | None) -> str:
    values = {"context_window": model.context_window, "max_output_tokens": model.max_output_tokens, "is_active": True}
    row = ServedModel.objects.filter(pk=model.id).first()
    is_new = row is None
    row = row or ServedModel(pk=model.id)
    changes = _assign(row, values)
    if is_new or changes:
        row.full_clean()
        row.save()
    changes += _load_deployments(row, model)
    changes += _load_price(model, price)
    return f"{model.id}: {_summary(is_new, changes)}{_warning(model, price)}"


def _load_deployments(row: ServedModel, model: Model) -> list[str]:
    """The file is the whole truth about a model of its own: a deployment that it does not have is deactivated."""
    rows = {deployment.name: deployment for deployment in row.deployments.all()}
    named = model.named_deployments()
    changes: list[str] = []
    for name, deployment in named.items():
        known = rows.get(name)
        changes += _save_deployment(known or Deployment(model=row, name=name), deployment)
    for name, deployment_row in rows.items():
        if name not in named and deployment_row.is_active:
            deployment_row.is_active = False
            deployment_row.save(update_fields=["is_active"])
            changes.append(f"deployment {name} deactivated")
    return changes


def _save_deployment(row: Deployment, deployment: FileDeployment) -> list[str]:
    values: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(deployment).items() if name != "name"}
    is_new = row.pk is None
    changes = _assign(row, values | {"is_active": True})
    if is_new or changes:
        row.full_clean()
        row.save()
    if is_new:
        return [f"deployment {row.name} created"]
    return [f"deployment {row.name} {change}" for change in changes]


def _load_price(model: Model, before: pricing.Price | None) -> list[str]:
    """A change is a new row, in effect from now on; what has been charged keeps its price."""
    if model.price is UNSET or not prices.change(model.id, model.price.value):
        return []
    old = asdict(before) if before else {}
    return [
        f"price {name.removesuffix('_nanodollars')} {_usd(old.get(name))} -> {_usd(new)}"
        for name, new in asdict(model.price.value).items()
        if new != old.get(name)
    ]


def _assign(row: ServedModel | Deployment, values: Mapping[str, Any]) -> list[str]:
    """Set the fields; answers the changes as "field old -> new"."""
    changes = [f"{name} {_shown(getattr(row, name))} -> {_shown(value)}" for name, value in values.items() if getattr(row, name) != value]
    for name, value in values.items():
        setattr(row, name, value)
    return changes


def _usd(nanodollars: int | None) -> str:
    return "none" if nanodollars is None else pricing.to_usd(nanodollars)


def _shown(value: object) -> str:
    return json.dumps(value, default=str)


def _summary(is_new: bool, changes: list[str]) -> str:
    if is_new:
        return "created"
    return f"changed: {'; '.join(changes)}" if changes else "unchanged"


def _warning(model: Model, price_before: pricing.Price | None) -> str:
    is_priced = price_before is not None or model.price is not UNSET
    return "" if is_priced else " (it has no price, so its requests are refused)"
