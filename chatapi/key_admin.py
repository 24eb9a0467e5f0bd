"""The operator's pages about API keys, with what only this package knows: which dialects and models there are."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminSelectWidget

from accounts.admin import APIKeyAdmin
from accounts.models import APIKey
from chatapi.wire.dialects import DIALECTS

admin.site.unregister(APIKey)


@admin.register(APIKey)
class ServedKeyAdmin(APIKeyAdmin):
    """The keys' pages, with the dialects that there are."""

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """A dialect is chosen, not typed."""
        if db_field.name != "default_dialect":
            return super().formfield_for_dbfield(db_field, request, **kwargs)
        choices = [("", "The server's default"), *((name, name) for name in DIALECTS)]
        return forms.ChoiceField(choices=choices, required=False, widget=UnfoldAdminSelectWidget, help_text=db_field.help_text)
