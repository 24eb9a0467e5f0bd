"""The GET form of a list of what belongs to organizations."""

from collections.abc import Mapping
from typing import cast

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts import access
from accounts.models import Organization
from usage.pages.filters import Chip, RowField
from usage.pages.links import page_url


class OrganizationFilterForm(forms.Form):
    """The organization whose rows a list shows."""

    organization = RowField(Organization, "organization")

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request.GET.dict(), auto_id=False)
        self._field.person = request.user

    @property
    def _field(self) -> RowField:
        return cast(RowField, self.fields["organization"])

    def offer_organizations(self) -> QuerySet[Organization]:
        """Offer the organizations that the person sees, and return them."""
        rows = access.seen_by(self._field.person, Organization.objects.all())
        shown = self._field.offer(rows, self.cleaned_data["organization"])
        self.data = {**self.data, "organization": shown}
        return rows

    def chips(self, page: str, query: Mapping[str, object]) -> list[Chip]:
        """Return the parameters of the page that are set, an organization by its name."""
        chosen = self.cleaned_data["organization"]
        shown = (
            dict(query) if chosen is None else {**query, "organization": self._field.row(chosen) or chosen}
        )
        return [
            Chip(f"{name}: {value}", page_url(page, {**query, name: ""}))
            for name, value in shown.items()
            if value not in (None, "")
        ]
