"""The answers of the client routes as typed objects: models, keys, receipts. /docs shows these types."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from accounts.limits import WINDOWS, Counts, Limit, Window
from accounts.models import APIKey
from chatapi import identity
from chatapi.models import ModelKind, ServedModel
from chatapi.wire.invalid_request import InvalidRequest
from usage.books import credit, receipts, spending
from usage.models import Generation, LedgerEntry, State
from usage.pricing import LineItem as PricedLine
from usage.pricing import LineName, to_usd


# One object for both APIs, because their clients call the same path; each ignores the other's members.
class Model(Struct, frozen=True, kw_only=True):
    """A model that can be named in requests: the members of OpenAI's `Model`, and of Anthropic's `ModelInfo`
    from `type` on. `alias_of` is present if `id` is an alias.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    kind: Annotated[str, Meta(extra_json_schema={"enum": ModelKind.values})]
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: Literal["active", "deprecated"]
    deprecated_at: str | None
    alias_of: str | UnsetType = UNSET


class ModelList(Struct, frozen=True, kw_only=True):
    """The models that the key can use, or a page of them."""

    object: Literal["list"] = "list"
    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Budget(Struct, frozen=True):
    """A budget in its current period; `limit_*` is null without a limit, `pending_*` is held by requests."""

    scope: Literal["organization", "project", "key"]
    period: Literal["day", "week", "month", "ever"]
    period_start: date
    limit_usd: str | None
    limit_nanodollars: int | None
    posted_usd: str
    posted_nanodollars: int
    pending_usd: str
    pending_nanodollars: int


class Credit(Struct, frozen=True):
    """The part of the organization's prepayments that is left for new requests."""

    available_usd: str
    available_nanodollars: int


_COUNTS = {each: "concurrent_requests" if each is Counts.RUNNING else each.value for each in Counts}


class RateLimit(Struct, frozen=True):
    """A limit per minute or day, or at the same time (`per` is null); of all models if `model` is null."""

    scope: Literal["organization", "project", "key"]
    model: str | None
    counts: Annotated[str, Meta(extra_json_schema={"enum": list(_COUNTS.values())})]
    per: Window | None
    limit: int


class Key(Struct, frozen=True, kw_only=True):
    """The calling key, with the budgets, the credit and the rate limits that can refuse its requests.

    Without scopes it may do everything. Without models it may use all that its project may, which
    `GET /v1/models` lists. Without allowed IPs it may be used from every address. Limits of end users are not
    shown; credit is null if none is required.
    """

    id: int
    object: Literal["api_key"] = "api_key"
    name: str
    redacted: str
    organization: str
    project: str
    is_test: bool
    is_admin: bool
    scopes: list[str]
    models: list[str]
    allowed_ips: list[str]
    created_at: str
    expires_at: str | None
    budgets: list[Budget]
    credit: Credit | None
    rate_limits: list[RateLimit]


class PromptTokensDetails(Struct, frozen=True):
    """Details of the prompt's tokens; `cache_write_1h_tokens` are those written that are kept for an hour."""

    cached_tokens: int | UnsetType = UNSET
    cache_write_tokens: int | UnsetType = UNSET
    cache_write_1h_tokens: int | UnsetType = UNSET


class CompletionTokensDetails(Struct, frozen=True):
    """Details of the completion's tokens."""

    reasoning_tokens: int


class Usage(Struct, frozen=True):
    """The tokens that were charged; details that are not known are left out (OpenAI's `CompletionUsage`)."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class LineItem(Struct, frozen=True):
    """One line of a receipt, rounded once: the lines add up to the amount."""

    name: LineName
    tokens: int
    price_per_mtok_usd: str
    amount_usd: str
    amount_nanodollars: int


class Correction(Struct, frozen=True):
    """A later change of the charge; a negative one is a refund."""

    created_at: str
    amount_usd: str
    amount_nanodollars: int


class Timings(Struct, frozen=True):
    """The times of admission, claim by a worker and settlement; the times of tokens are since the claim."""

    admitted_at: str
    claimed_at: str | None
    settled_at: str | None
    queue_ms: int | None
    first_token_ms: int | None
    last_token_ms: int | None
    total_ms: int | None


class Attempt(Struct, frozen=True):
    """A try to get an answer: its model, the error's code if it failed, and its duration."""

    model: str | None
    error: str | None
    duration_ms: int


class GenerationError(Struct, frozen=True):
    """The reason why a generation broke off."""

    code: str
    message: str


class Receipt(Struct, frozen=True, kw_only=True):
    """The usage and cost of a generation. Until `state` is `settled`, its usage and its amounts are null.

    The amount is the sum of its line items, as the client saw it; `net_*` includes later corrections.
    `is_fallback`: `model` has answered, because the one that `requested_model` names could not. If an attempt
    failed, `attempts` has the last ones.
    """

    id: str
    object: Literal["generation"] = "generation"
    created: int
    model: str
    requested_model: str | None
    is_fallback: bool
    end_user: str | None
    metadata: dict[str, str] | None
    endpoint: str
    dialect: str
    stream: bool
    is_test: bool
    state: Literal["admitted", "running", "settled"]
    outcome: str | None
    finish_reason: str | None
    error: GenerationError | None
    usage_source: Literal["upstream", "counted", "none"] | None
    usage_note: Literal["upstream_implausible", "upstream_added", "upstream_low"] | None
    usage: Usage | None
    line_items: list[LineItem]
    amount_usd: str | None
    amount_nanodollars: int | None
    corrections: list[Correction]
    net_usd: str | None
    net_nanodollars: int | None
    is_waived: bool
    attempts: list[Attempt]
    timings: Timings


def model(row: ServedModel, name: str) -> Model:
    """Return the model as clients see it by that name: its id or an alias."""
    deprecated_at = None
    # Anthropic's models have null while they are active, also if the day is known.
    if row.deprecated_on is not None and row.deprecated_on <= datetime.now(UTC).date():
        deprecated_at = _rfc3339(datetime.combine(row.deprecated_on, time(), UTC))
    return Model(
        id=name,
        # OpenAI has Unix seconds; `created_at` is Anthropic's, in RFC 3339.
        created=int(row.created_at.timestamp()),
        owned_by=row.owned_by,
        kind=row.kind,
        display_name=name,
        created_at=_rfc3339(row.created_at),
        max_input_tokens=row.context_window,
        max_tokens=row.max_output_tokens,
        lifecycle="deprecated" if deprecated_at else "active",
        deprecated_at=deprecated_at,
        alias_of=UNSET if name == row.id else row.id,
    )


def models_page(
    models: list[Model], limit: int | None, after_id: str | None, before_id: str | None
) -> ModelList:
    """Return at most `limit` of the models between two of them; the last ones if only `before_id` is given.

    Raises `InvalidRequest` for an unknown id.
    """
    # None stands for no id, before the first place.
    places: dict[str | None, int] = {None: -1} | {model.id: place for place, model in enumerate(models)}
    for name, value in (("after_id", after_id), ("before_id", before_id)):
        if value not in places:
            message = f"Invalid value for '{name}': it must be the id of a model that this key can use."
            raise InvalidRequest(message, name)
    end = len(models) if before_id is None else places[before_id]
    found = models[places[after_id] + 1 : end]
    is_backwards = before_id is not None and after_id is None
    # Backwards, a page has the last ones before `before_id`, in the same order.
    page = found if limit is None else found[-limit:] if is_backwards else found[:limit]
    first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
    return ModelList(data=page, has_more=len(page) < len(found), first_id=first_id, last_id=last_id)


def key(
    row: APIKey, budgets: list[spending.Spending], balance: credit.Balance, rate_limits: Iterable[Limit]
) -> Key:
    return Key(
        id=row.pk,
        name=row.name,
        redacted=row.redacted,
        organization=row.project.organization.name,
        project=row.project.name,
        is_test=row.is_test,
        is_admin=row.is_admin,
        scopes=row.scopes,
        models=row.allowed_models,
        allowed_ips=row.allowed_ips,
        created_at=_rfc3339(row.created_at),
        expires_at=_rfc3339(row.expires_at) if row.expires_at else None,
        budgets=[_budget(each) for each in budgets],
        credit=Credit(to_usd(balance.available_nanodollars), balance.available_nanodollars)
        if balance.is_required
        else None,
        rate_limits=[_rate_limit(each) for each in rate_limits],
    )


def _rate_limit(limit: Limit) -> RateLimit:
    return RateLimit(
        scope=limit.scope,  # type: ignore[arg-type]  # a key has no limits of its end users
        model=limit.model or None,
        counts=_COUNTS[limit.counts],
        per=WINDOWS[limit.window_ms] if limit.window_ms else None,
        limit=limit.most,
    )


def receipt(row: Generation) -> Receipt:
    is_settled = row.state == State.SETTLED
    corrections = receipts.corrections(row)
    net = receipts.net_nanodollars(row, corrections)
    return Receipt(
        id=str(row),
        created=identity.created(row.id),
        model=row.model,
        requested_model=row.requested_model,
        is_fallback=row.is_fallback,
        end_user=row.end_user,
        metadata=row.metadata,
        endpoint=row.endpoint,
        dialect=row.dialect,
        stream=row.is_stream,
        is_test=row.is_test,
        state=row.state,  # type: ignore[arg-type]  # the column's choices
        outcome=row.outcome or None,
        finish_reason=row.finish_reason or None,
        error=GenerationError(row.error_code, row.error_message) if row.error_code else None,
        usage_source=row.usage_source if is_settled else None,  # type: ignore[arg-type]
        usage_note=row.usage_note if is_settled else None,  # type: ignore[arg-type]
        # Until then the columns hold what the last heartbeat counted, which may still grow.
        usage=_usage(row) if is_settled else None,
        line_items=[_line_item(line) for line in receipts.line_items(row)],
        amount_usd=to_usd(row.amount_nanodollars) if is_settled else None,
        amount_nanodollars=row.amount_nanodollars if is_settled else None,
        corrections=[_correction(entry) for entry in corrections],
        net_usd=to_usd(net) if is_settled else None,
        net_nanodollars=net if is_settled else None,
        is_waived=row.is_waived,
        attempts=[
            Attempt(each.model or None, each.error_code or None, each.duration_ms)
            for _, each in receipts.attempts(row)
        ],
        timings=_timings(row),
    )


def _budget(each: spending.Spending) -> Budget:
    limit, (scope, _, period, period_start) = each.limit_nanodollars, each.key
    return Budget(
        scope=scope,  # type: ignore[arg-type]
        period=period,  # type: ignore[arg-type]
        period_start=period_start,
        limit_usd=None if limit is None else to_usd(limit),
        limit_nanodollars=limit,
        posted_usd=to_usd(each.posted_nanodollars),
        posted_nanodollars=each.posted_nanodollars,
        pending_usd=to_usd(each.pending_nanodollars),
        pending_nanodollars=each.pending_nanodollars,
    )


def _usage(row: Generation) -> Usage:
    counts = {name: getattr(row, name) for name in PromptTokensDetails.__struct_fields__}
    # None is not zero: the upstream did not say whether a cache was used.
    known = {name: count for name, count in counts.items() if count is not None}
    return Usage(
        row.prompt_tokens,
        row.completion_tokens,
        row.prompt_tokens + row.completion_tokens,
        PromptTokensDetails(**known) if known else UNSET,
        UNSET if row.reasoning_tokens is None else CompletionTokensDetails(row.reasoning_tokens),
    )


def _line_item(line: PricedLine) -> LineItem:
    return LineItem(
        name=line.name,
        tokens=line.tokens,
        price_per_mtok_usd=to_usd(line.price_per_mtok_nanodollars),
        amount_usd=to_usd(line.amount_nanodollars),
        amount_nanodollars=line.amount_nanodollars,
    )


def _correction(entry: LedgerEntry) -> Correction:
    """Return the correction without its reason and author, which are for operators."""
    return Correction(_rfc3339(entry.created_at), to_usd(entry.amount_nanodollars), entry.amount_nanodollars)


def _timings(row: Generation) -> Timings:
    return Timings(
        admitted_at=_rfc3339(row.admitted_at),
        claimed_at=_rfc3339(row.claimed_at) if row.claimed_at else None,
        settled_at=_rfc3339(row.settled_at) if row.settled_at else None,
        queue_ms=receipts.queue_ms(row),
        first_token_ms=row.first_token_ms,
        last_token_ms=row.last_token_ms,
        total_ms=receipts.total_ms(row),
    )


def _rfc3339(moment: datetime) -> str:
    """Return the moment in UTC with milliseconds, as in `2026-11-21T02:00:00.123Z` (RFC 3339)."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
