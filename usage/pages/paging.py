"""Pages of a long list of rows, the newest first."""

from collections.abc import Callable
from typing import TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest

from usage.pages.filters import is_id

Row = TypeVar("Row", bound=Model)


def newest_first(
    request: HttpRequest, rows: QuerySet[Row], size: int, url: Callable[..., str]
) -> tuple[list[Row], dict[str, str]]:
    """Return a page of `size` rows, and the links to other pages; `url` makes the URL of one (`before=…`)."""
    before = request.GET.get("before", "")
    rows = rows.filter(pk__lt=int(before)) if is_id(before) else rows
    # One more than is shown says whether there is an older page.
    found = list(rows.order_by("-pk")[: size + 1])
    older_url = url(before=found[size - 1].pk) if len(found) > size else ""
    return found[:size], {"older_url": older_url, "newest_url": url() if before else ""}
