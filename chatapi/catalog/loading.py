"""Loads a catalog file into the database: makes a plan of the changes, and applies it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from django.core.exceptions import ValidationError
from django.db import OperationalError, connection, transaction
from msgspec import UNSET

from accounts.audit import recorder
from chatapi.catalog.file import Catalog, CatalogError, Model
from chatapi.catalog.file import Deployment as FileDeployment
from chatapi.models import Deployment, ServedModel, shared_alias
from usage import pricing
from usage.books import prices
from usage.errors import sqlstate

# Error codes after a wait for a lock (PostgreSQL's documentation, appendix A).
LOCK_NOT_AVAILABLE, QUERY_CANCELED = "55P03", "57014"


class CatalogChanged(CatalogError):
    """The catalog has changed since the plan was made."""


class CatalogBusy(CatalogError):
    """Another transaction changes the catalog for longer than the lock timeout."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed field with its values, or a description of a created or deactivated row.

    A created row has an empty `before`.
    """

    what: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.before} -> {self.after}" if self.before else self.what


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The changes of one model."""

    id: str
    is_new: bool
    changes: Sequence[Change]
    warning: str
    rows: Sequence[ServedModel | Deployment]
    """The rows to save, in this order."""
    price: pricing.Price | None
    """The new price; None if it does not change."""

    @property
    def verb(self) -> str:
        return "created" if self.is_new else "changed" if self.changes else "unchanged"

    def __str__(self) -> str:
        changes = "" if self.is_new or not self.changes else f": {'; '.join(map(str, self.changes))}"
        return f"{self.id}: {self.verb}{changes}" + (f" ({self.warning})" if self.warning else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes of loading a file."""

    models: Sequence[ModelPlan]
    missing: Sequence[str]
    """The ids of active models that the file does not have."""
    deactivates_missing: bool

    @property
    def lines(self) -> list[str]:
        """Return a line for each model of the file, with its changes."""
        return [str(model) for model in self.models]

    @property
    def digest(self) -> str:
        """Return a digest that is equal for plans with equal changes."""
        changes = [
            [model.id, model.is_new, [asdict(change) for change in model.changes]] for model in self.models
        ]
        # The preview page sends it back, so that what is applied is what a person has seen.
        text = json.dumps([changes, list(self.missing), self.deactivates_missing])
        return hashlib.sha256(text.encode()).hexdigest()


def plan(catalog: Catalog, *, deactivate_missing: bool = False) -> Plan:
    """Return the changes that `load` would make now. Raises `CatalogError` for values that no row can hold.

    The number of queries does not depend on the file's size.
    """
    current = prices.current()
    models = {row.pk: row for row in ServedModel.objects.all()}
    deployments: dict[str, list[Deployment]] = {}
    for row in Deployment.objects.all():
        deployments.setdefault(row.model_id, []).append(row)
    plans = [
        _plan_model(model, models.get(model.id), deployments.get(model.id, []), current.get(model.id))
        for model in catalog.models
    ]
    # As the catalog will be: an alias may move from one model to another in the same file.
    changed = {row.pk: row for each in plans for row in each.rows if isinstance(row, ServedModel)}
    if clash := shared_alias((models | changed).values()):
        raise CatalogError(f"{clash[0]}: aliases: {clash[1]}")
    named = {model.id for model in catalog.models}
    return Plan(
        plans,
        sorted(key for key, row in models.items() if row.is_active and key not in named),
        deactivate_missing,
    )


def load(catalog: Catalog, *, deactivate_missing: bool = False, expected_digest: str | None = None) -> Plan:
    """Apply the catalog in one transaction; with `deactivate_missing`, deactivate all other models.

    Raises `CatalogChanged` if the plan's digest is not `expected_digest`, and `CatalogBusy`; both change
    nothing.
    """
    try:
        with transaction.atomic():
            # Lock before planning: no row that the plan reads may change before the commit.
            _wait_for_others()
            return _apply(catalog, deactivate_missing, expected_digest)
    except OperationalError as error:
        if sqlstate(error) in (LOCK_NOT_AVAILABLE, QUERY_CANCELED) or "locked" in str(error):
            raise CatalogBusy(
                "Someone else is changing the catalog, and nothing is loaded. Try again in a moment."
            ) from error
        raise


def _apply(catalog: Catalog, deactivate_missing: bool, expected_digest: str | None) -> Plan:
    made = plan(catalog, deactivate_missing=deactivate_missing)
    if expected_digest not in (None, made.digest):
        raise CatalogChanged("The catalog has changed since the plan was made.")
    for model in made.models:
        # One by one, through the ORM: the audit log listens to `save`.
        for row in model.rows:
            row.save()
        if model.price is not None:
            prices.change(model.id, model.price)
    if deactivate_missing:
        # `QuerySet.update` would bypass the audit log.
        recorder.update(ServedModel.objects.filter(pk__in=made.missing), is_active=False)
    return made


def _wait_for_others() -> None:
    """Lock out other loads and the admin until the commit; SQLite has one writer anyway."""
    if connection.vendor == "postgresql":
        tables = f"{ServedModel._meta.db_table}, {Deployment._meta.db_table}"
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")


def _plan_model(
    model: Model, known: ServedModel | None, deployments: Sequence[Deployment], price: pricing.Price | None
) -> ModelPlan:
    row = known or ServedModel(pk=model.id)
    if known is not None and known.kind != model.kind:
        raise CatalogError(f"{model.id}: its kind stays {known.kind!r}, because usage is reported by kind")
    values = {
        "kind": model.kind.value,
        "context_window": model.context_window,
        "max_output_tokens": model.max_output_tokens,
        "aliases": model.aliases,
        "deprecated_on": model.deprecated_on,
        "is_active": model.is_active,
    }
    # A file without an owner leaves it, so that one edited in the admin stays.
    changes = _assign(row, values if model.owned_by is UNSET else values | {"owned_by": model.owned_by})
    if known is None:
        given = {name: value for name, value in values.items() if value and value is not True}
        changes = [Change("model created", after=_listed(given))]
    rows: list[ServedModel | Deployment] = [row] if changes or known is None else []
    for deployment, its_changes in _planned_deployments(row, deployments, model):
        rows.append(deployment)
        changes += its_changes
    # A file without a price leaves the price: to take it away would stop the model.
    new_price = None if model.price is UNSET else model.price.value
    changes += _price_changes(new_price, price)
    for changed in rows:
        _check(changed)
    return ModelPlan(
        model.id,
        known is None,
        changes,
        _warning(model, new_price or price),
        rows,
        # An equal price makes no new row in the history of prices.
        None if new_price == price else new_price,
    )


def _planned_deployments(
    row: ServedModel, known: Sequence[Deployment], model: Model
) -> list[tuple[Deployment, list[Change]]]:
    """Return the deployments to save with their changes; those that the file lacks are deactivated."""
    rows, named = {deployment.name: deployment for deployment in known}, model.named_deployments()
    planned = []
    for name, deployment in named.items():
        deployment_row = rows.get(name)
        if deployment_row is None:
            deployment_row = Deployment(model=row, name=name)
            _assign(deployment_row, _values(deployment))
            created = Change(f"deployment {name} created", after=_listed(_not_default(deployment)))
            planned.append((deployment_row, [created]))
        elif changes := _assign(deployment_row, _values(deployment), f"deployment {name} "):
            planned.append((deployment_row, changes))
    for name, deployment_row in rows.items():
        # Deactivated and not deleted: running requests and receipts name it.
        if name not in named and deployment_row.is_active:
            deployment_row.is_active = False
            planned.append((deployment_row, [Change(f"deployment {name} deactivated")]))
    return planned


def _values(deployment: FileDeployment) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(deployment).items() if name != "name"}


def _not_default(deployment: FileDeployment) -> dict[str, Any]:
    """Return the values of a new deployment that are not defaults."""
    usual = _values(FileDeployment(engine=""))
    return {name: value for name, value in _values(deployment).items() if value != usual[name]}


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in values.items())


def _price_changes(new_price: pricing.Price | None, before: pricing.Price | None) -> list[Change]:
    """Return the changes of a price. It becomes a new row, so past charges keep their price."""
    if new_price is None:
        return []
    old = asdict(before) if before else {}
    return [
        Change(f"price {name.removesuffix('_nanodollars')}", _usd(old.get(name)), _usd(new))
        for name, new in asdict(new_price).items()
        if new != old.get(name)
    ]


def _assign(row: ServedModel | Deployment, values: Mapping[str, Any], of: str = "") -> list[Change]:
    changes = [
        Change(f"{of}{name}", _shown(getattr(row, name)), _shown(value))
        for name, value in values.items()
        if getattr(row, name) != value
    ]
    for name, value in values.items():
        setattr(row, name, value)
    return changes


def _check(row: ServedModel | Deployment) -> None:
    """Raise `CatalogError` for values that the file's types allow and the row does not."""
    try:
        row.clean_fields(exclude={"model"})  # its row may not be saved yet
        row.clean()
    except ValidationError as error:
        raise CatalogError(f"{row}: {'; '.join(error.messages)}") from error


def _usd(nanodollars: int | None) -> str:
    return "none" if nanodollars is None else pricing.to_usd(nanodollars)


def _shown(value: object) -> str:
    return json.dumps(value, default=str)


def _warning(model: Model, price: pricing.Price | None) -> str:
    if not any(deployment.is_active for deployment in model.deployments):
        return "it has no deployment, so its requests are refused"
    return "it has no price, so its requests are refused" if price is None else ""
