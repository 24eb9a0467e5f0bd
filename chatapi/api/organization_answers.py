"""The organization's usage and costs as typed objects (OpenAI's API reference, "Usage" and "Costs")."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType


class CompletionsUsage(Struct, frozen=True, kw_only=True):
    """The usage of one group in one bucket (OpenAI's `UsageCompletionsResult`). `end_user`, which OpenAI does
    not have, is present if `group_by` names it.
    """

    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    input_tokens: int
    input_cached_tokens: int
    input_cache_write_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None
    end_user: str | UnsetType = UNSET
    batch: bool | None = None
    service_tier: str | None = None


class EmbeddingsUsage(Struct, frozen=True, kw_only=True):
    """The usage of one group in one bucket (OpenAI's `UsageEmbeddingsResult`). `end_user`, which OpenAI does
    not have, is present if `group_by` names it.
    """

    object: Literal["organization.usage.embeddings.result"] = "organization.usage.embeddings.result"
    input_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None
    end_user: str | UnsetType = UNSET


class Amount(Struct, frozen=True, kw_only=True):
    """Money; `value` is exact to the nanodollar up to some million dollars."""

    value: float
    currency: Literal["usd"] = "usd"


class Cost(Struct, frozen=True, kw_only=True):
    """The cost of one group in one bucket; line items are models (OpenAI's `CostsResult`)."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: Amount
    line_item: str | None = None
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    end_user: str | UnsetType = UNSET
    quantity: int | None = None
    quantity_unit: Literal["tokens"] | None = None


class UsageBucket(Struct, frozen=True, kw_only=True):
    """One minute, hour or day; times are Unix seconds, `end_time` is not included."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[CompletionsUsage]


class EmbeddingsBucket(Struct, frozen=True, kw_only=True):
    """One minute, hour or day; times are Unix seconds, `end_time` is not included."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[EmbeddingsUsage]


class EmptyBucket(Struct, frozen=True, kw_only=True):
    """One minute, hour or day of usage that the service does not have; times are Unix seconds."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: Annotated[list[Any], Meta(max_length=0)]


class CostBucket(Struct, frozen=True, kw_only=True):
    """One day; times are Unix seconds, `end_time` is not included."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[Cost]


class UsagePage(Struct, frozen=True, kw_only=True):
    """Buckets, oldest first; `page=next_page` asks for the ones after them."""

    object: Literal["page"] = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


class EmbeddingsPage(Struct, frozen=True, kw_only=True):
    """Buckets, oldest first; `page=next_page` asks for the ones after them."""

    object: Literal["page"] = "page"
    data: list[EmbeddingsBucket]
    has_more: bool
    next_page: str | None


class EmptyPage(Struct, frozen=True, kw_only=True):
    """Buckets without results, oldest first; `page=next_page` asks for the ones after them."""

    object: Literal["page"] = "page"
    data: list[EmptyBucket]
    has_more: bool
    next_page: str | None


class CostPage(Struct, frozen=True, kw_only=True):
    """Buckets, oldest first; `page=next_page` asks for the ones after them."""

    object: Literal["page"] = "page"
    data: list[CostBucket]
    has_more: bool
    next_page: str | None
