"""The models that an organization can call, at its current and announced prices."""

from dataclasses import dataclass
from datetime import date, datetime
from operator import attrgetter

from accounts.model_lists import list_allows
from chatapi import catalog
from chatapi.catalog import CatalogModel
from chatapi.console.tenancy import Console
from chatapi.model_kinds import MODEL_KINDS
from chatapi.models import ModelKind
from chatapi.wire.parameters import COMPLETION_LIMIT, CUSTOM_TOOLS
from usage import pricing
from usage.books import prices
from usage.books.prices import History
from usage.database.clock import database_now
from usage.pricing import Price


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that the organization can call."""

    id: str
    kind: str
    context_window: int
    max_output_tokens: int
    price: Price
    announced: list[tuple[datetime, Price]]
    """The later prices, after changes of price or discount, each with its start; the next one first."""
    extra_parameters: list[str]
    unsupported_parameters: frozenset[str]
    allows_image_urls: bool
    deprecated_on: date | None
    names: list[str]
    """Its aliases."""

    @property
    def has_output(self) -> bool:
        """Return whether answers have output tokens, which have a limit and a price."""
        return MODEL_KINDS[self.kind].has_output


def offers(console: Console) -> list[Offer]:
    """Return the models that the chosen project may use, or any active project if no active one is chosen.

    They are sorted by name, with the sandbox's last.
    """
    organization_id, now = console.organization.pk, database_now()
    announced, history = prices.announced(now), History(organization_id)
    discount_starts = [start for start, _ in history.discounts_of(organization_id) if start > now]

    def own_prices(model: str, listed: Price) -> list[tuple[datetime, Price]]:
        """Return the current price and each later one that differs from the one before, with its start."""
        later = {row.effective_from: row.value for row in announced.get(model, ())}
        found: list[tuple[datetime, Price]] = []
        for start in sorted({now, *later, *discount_starts}):
            listed = later.get(start, listed)
            price = pricing.discounted(listed, history.discount_at(start, organization_id))
            if not found or price != found[-1][1]:
                found.append((start, price))
        return found

    return [
        _offer(model, own_prices(model.id, model.price))
        for model in _callable(console, now)
        if model.price is not None
    ]


def model_names(console: Console) -> list[str]:
    """Return the names of the models that the organization can call."""
    return [model.id for model in _callable(console)]


def models_named(console: Console, part: str) -> list[str]:
    """Return the names of these models that have the text in their name, or in one of their aliases."""
    words = part.casefold()
    return [
        model.id
        for model in _callable(console)
        if any(words in name.casefold() for name in (model.id, *model.aliases))
    ]


def first_model(console: Console) -> str:
    """Return the name of a chat model that the organization can call; empty if there is none."""
    return next((model.id for model in _callable(console) if model.kind == ModelKind.CHAT), "")


def chat_offers(console: Console) -> list[Offer]:
    """Return the chat models that the organization can call."""
    return [offer for offer in offers(console) if offer.kind == ModelKind.CHAT]


def _callable(console: Console, now: datetime | None = None) -> list[CatalogModel]:
    project = console.project
    is_chosen = project is not None and (project.is_active or console.limit is not None)
    projects = [project] if project and is_chosen else console.projects
    served = {model.id: model for model in catalog.load(now).values() if model.is_listed}
    return [
        model
        for model in sorted(served.values(), key=attrgetter("is_sandbox", "id"))
        if not projects
        or any(list_allows(each.models_mode, each.listed_models, model.id) for each in projects)
    ]


def _offer(model: CatalogModel, own_prices: list[tuple[datetime, Price]]) -> Offer:
    (_, price), *announced = own_prices
    return Offer(
        id=model.id,
        kind=model.kind,
        context_window=model.context_window,
        max_output_tokens=model.max_output_tokens,
        price=price,
        announced=announced,
        extra_parameters=sorted(model.extra_parameters - {CUSTOM_TOOLS, COMPLETION_LIMIT}),
        unsupported_parameters=model.unsupported_parameters,
        allows_image_urls=model.remote_media_allowed,
        deprecated_on=model.deprecated_on,
        names=sorted(model.aliases),
    )
