"""The search forms of the lists of keys, members and projects, and of everything."""

import re
from collections.abc import Mapping
from datetime import datetime

from django import forms
from django.db.models import Q, QuerySet

from accounts import keys
from accounts.models import SHOWN_NAME, APIKey, Member, Project
from usage.pages.filters import choice_field, text_field

# A key as pages show it, such as ck_live_4fGh…, with or without its prefix.
_SHOWN_KEY = re.compile(r"(?:ck_(?:live|test)_)?([0-9A-Za-z]{4,12})…?")
_STATUSES = ("active", "disabled", "expired", "revoked", "project archived")


class Search(forms.Form):
    """The GET form of a list; absent parameters leave all rows."""

    def __init__(self, query: Mapping[str, str]) -> None:
        # A label encloses its field here, so no field needs an id.
        super().__init__(query, auto_id=False)

    @property
    def query(self) -> dict[str, str]:
        """Return the set parameters of a valid form, for the links of the list."""
        return {name: value for name, value in self.cleaned_data.items() if value}


class EverythingSearch(Search):
    """The text in the frame of each page."""

    q = forms.CharField(label="Search", required=False, max_length=200)


class KeySearch(Search):
    """A part of a key's name, or the beginning of a key as pages show it; and a status."""

    q = text_field("Name or key", type="search")
    status = choice_field("Status", {name: name for name in _STATUSES})

    def found_in(self, rows: QuerySet[APIKey], now: datetime) -> QuerySet[APIKey]:
        """Return the keys that match."""
        text, status = self.cleaned_data["q"], self.cleaned_data["status"]
        found = Q(name__icontains=text)
        if shown := _SHOWN_KEY.fullmatch(text):
            found |= Q(public__startswith=shown[1]) | Q(previous_public__startswith=shown[1])
        rows = rows.filter(found) if text else rows
        return keys.with_status(rows, status, now) if status else rows


class MemberSearch(Search):
    """A part of a member's user name or e-mail address."""

    q = text_field("User or e-mail", type="search")

    def found_in(self, rows: QuerySet[Member]) -> QuerySet[Member]:
        """Return the members that match."""
        text = self.cleaned_data["q"]
        found = Q(shown_name__icontains=text) | Q(user__email__icontains=text)
        return rows.alias(shown_name=SHOWN_NAME).filter(found) if text else rows


class ProjectSearch(Search):
    """A part of a project's name."""

    q = text_field("Project", type="search")

    def found_in(self, rows: QuerySet[Project]) -> QuerySet[Project]:
        """Return the projects that match."""
        return rows.filter(name__icontains=self.cleaned_data["q"])
