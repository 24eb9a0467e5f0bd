"""Pages of lists, with the members of OpenAI's: a page begins behind `after`, or ends before `before`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from django.db.models import Model, QuerySet
from msgspec import Meta, Struct

from chatapi.wire.invalid_request import InvalidRequest

Item = TypeVar("Item", bound=Struct)
Row = TypeVar("Row", bound=Model)

RowId = Annotated[str, Meta(pattern=r"^[0-9]{1,18}\Z")]
Limit = Annotated[int, Meta(ge=1, le=100)]


class PageQuery(Struct, frozen=True, kw_only=True):
    """The place of a page in its list."""

    after: RowId | None = None
    limit: Limit = 20


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """A part of a list; `after=last_id` asks for the next one."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CursorPage(Struct, Generic[Item], frozen=True, kw_only=True):
    """A part of a list; `after=next` asks for the next one."""

    object: Literal["list"] = "list"
    data: list[Item]
    next: str | None
    has_more: bool


def page_of_rows(
    rows: QuerySet[Row],
    query: Any,
    shown: Callable[[list[Row]], Sequence[Item]],
    *,
    newest_first: bool = False,
    id_column: str = "pk",
) -> Page[Item]:
    """Return a page of these rows, the oldest first. `shown` converts rows to items, `id_column` has the ids.

    A cursor ends with an id. It stays valid after its row was deleted.
    """
    before = getattr(query, "before", None)
    is_backwards = before is not None and query.after is None
    for cursor, is_low in ((query.after, not newest_first), (before, newest_first)):
        if cursor is not None:
            number = int(cursor.rpartition("_")[2])
            rows = rows.filter(**{f"{id_column}__{'gt' if is_low else 'lt'}": number})
    # One row more than is shown tells whether there is another page.
    order = f"-{id_column}" if newest_first != is_backwards else id_column
    found = list(rows.order_by(order)[: query.limit + 1])
    page = found[: query.limit]
    return _page(shown(page[::-1] if is_backwards else page), has_more=len(found) > query.limit)


def page_of_items(items: Sequence[Item], query: Any) -> Page[Item]:
    """Return the page of a list that is in memory. Raises `InvalidRequest` for an unknown cursor."""
    places = {item.id: place for place, item in enumerate(items)}  # type: ignore[attr-defined]
    before = getattr(query, "before", None)
    for name, cursor in (("after", query.after), ("before", before)):
        if cursor is not None and cursor not in places:
            raise InvalidRequest(f"Invalid value for '{name}': there is no object with this id.", name)
    start = 0 if query.after is None else places[query.after] + 1
    found = items[start : len(items) if before is None else places[before]]
    is_backwards = before is not None and query.after is None
    page = found[-query.limit :] if is_backwards else found[: query.limit]
    return _page(page, has_more=len(found) > query.limit)


def cursor_page_of_rows(
    rows: QuerySet[Row],
    query: Any,
    shown: Callable[[Row], Item],
    cursor_of: Callable[[Row], str],
    id_column: str = "pk",
) -> CursorPage[Item]:
    """Return a page of these rows by the ids in `id_column`, the highest first if `query.order` is `desc`.

    A cursor ends with an id. It stays valid after its row was deleted.
    """
    is_descending = query.order == "desc"
    if query.after is not None:
        after = int(query.after.rpartition("_")[2])
        rows = rows.filter(**{f"{id_column}__{'lt' if is_descending else 'gt'}": after})
    # One row more than is shown tells whether there is another page.
    found = list(rows.order_by(f"{'-' if is_descending else ''}{id_column}")[: query.limit + 1])
    page, has_more = found[: query.limit], len(found) > query.limit
    return CursorPage(
        data=[shown(row) for row in page], next=cursor_of(page[-1]) if has_more else None, has_more=has_more
    )


def cursor_page_of(items: Sequence[Item], query: Any) -> CursorPage[Item]:
    """Return the same page as `page_of_items` in the form that some of OpenAI's lists have."""
    page = page_of_items(items, query)
    return CursorPage(data=page.data, next=page.last_id if page.has_more else None, has_more=page.has_more)


def _page(items: Sequence[Item], *, has_more: bool) -> Page[Item]:
    ids = [item.id for item in items]  # type: ignore[attr-defined]
    first_id, last_id = (ids[0], ids[-1]) if ids else (None, None)
    return Page(data=list(items), first_id=first_id, last_id=last_id, has_more=has_more)
