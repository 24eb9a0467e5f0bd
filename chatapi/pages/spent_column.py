"""The column "Spent" of the lists of organizations and projects."""

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from unfold.views import ChangeList

from accounts.models import Organization, Project
from usage.insights.recent_sums import DAYS, spent
from usage.models import Dimension
from usage.pages.columns import amounts

_DIMENSIONS = {Organization: Dimension.ORGANIZATION, Project: Dimension.PROJECT}

COLUMN, _ = amounts(f"Spent, {DAYS} days", lambda row: row.spent_nanodollars)


class SpentList(ChangeList):
    """A page of a list, with the amounts that its rows spent."""

    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        """Read the amounts of all rows of the page together."""
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        if "spent" in self.list_display:
            owners = {row.pk: getattr(row, "organization_id", row.pk) for row in rows}
            found = spent(_DIMENSIONS[self.model], owners, timezone.now())
            for row in rows:
                row.spent_nanodollars = found[row.pk]
        self.result_list = rows


def shown_to(request: HttpRequest, columns: Sequence[Any]) -> list[Any]:
    """Return the columns without the amounts if the person may not see usage."""
    may_see = request.user.has_perm("usage.view_hourlyusage")
    return [name for name in columns if may_see or name != "spent"]
