"""The field of a form in which a row is chosen by its name, which is completed as it is typed."""

from collections.abc import Sequence
from typing import Any

from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db import DataError
from django.http import HttpRequest


class RowSelect(AutocompleteSelect):
    """Django's; but that one asks the database, while the page is written, for whatever an address or a form
    gives as an id.
    """

    def optgroups(self, name: str, value: Sequence[str], attr: dict[str, Any] | None = None) -> Any:
        """The chosen row, where it is one of those that are offered."""
        return super().optgroups(name, [each for each in value if self._is_offered(each)], attr)

    def _is_offered(self, value: str) -> bool:
        field: Any = self.choices.field
        try:
            return field.to_python(value) is not None
        except (ValidationError, DataError):
            return False


class ChoosesRows:
    """Mixed into a ModelAdmin, before it: its `autocomplete_fields` are such fields."""

    autocomplete_fields: Any
    admin_site: Any

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """The field for a form."""
        if db_field.name in self.autocomplete_fields:
            kwargs.setdefault("widget", RowSelect(db_field, self.admin_site, using=kwargs.get("using")))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)  # type: ignore[misc]
