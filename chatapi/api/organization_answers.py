"""The organization's usage and costs as typed objects (OpenAI's API reference, "Usage" and "Costs")."""

from typing import Any, Literal, NamedTuple

from msgspec import UNSET, Struct, UnsetType, defstruct


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


class Pages(NamedTuple):
    """The types of a route's answer: pages of buckets of results."""

    page: type[Struct]
    bucket: type[Struct]


def pages_of(
    results: Any,
    name: str,
    *,
    bucket: str = "One minute, hour or day; times are Unix seconds, `end_time` is not included.",
    page: str = "Buckets, oldest first; `page=next_page` asks for the ones after them.",
) -> Pages:
    """Return the types for results of this type. `name` begins their names in the reference, `bucket` and
    `page` are their texts there.
    """
    kind: dict[str, Any] = {"module": __name__, "frozen": True, "kw_only": True}
    bucket_type = defstruct(
        f"{name}Bucket",
        [
            ("object", Literal["bucket"], "bucket"),
            ("start_time", int),
            ("end_time", int),
            ("results", results),
        ],
        namespace={"__doc__": bucket},
        **kind,
    )
    page_type = defstruct(
        f"{name}Page",
        [
            ("object", Literal["page"], "page"),
            ("data", list[bucket_type]),  # type: ignore[valid-type]  # it is made here
            ("has_more", bool),
            ("next_page", str | None),
        ],
        namespace={"__doc__": page},
        **kind,
    )
    return Pages(page_type, bucket_type)
