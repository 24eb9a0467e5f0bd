"""Parts of admin pages: read-only pages, a filter, forms that check constraints, fields that choose a row."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db import DataError
from django.http import HttpRequest
from unfold.admin import ModelAdmin


class ListAdmin(ModelAdmin):
    """A `ModelAdmin` with short list pages, whose title is the plural name of the rows."""

    list_per_page = 25
    number_columns: Collection[str] = ()
    """The columns of the list that are aligned as numbers."""
    # Numbers beside each filter would ask the database once for each.
    show_facets = admin.ShowFacets.NEVER
    list_max_show_all = 0

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Set the title; Django's is "Select budget to change"."""
        title = str(self.opts.verbose_name_plural)
        context = {"title": title[:1].upper() + title[1:], **(extra_context or {})}
        return super().changelist_view(request, context)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the columns that the person changed, if the form knows them."""
        if change and isinstance(form, OwnChangesForm):
            form.save_changes()
        else:
            super().save_model(request, obj, form, change)


class ReadOnlyAdmin:
    """A mixin before a `ListAdmin` of rows that the service writes: nobody adds, changes or deletes them, not
    even superusers.
    """

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class IsSetFilter(admin.EmptyFieldListFilter):
    """A filter by whether a time is set: "revoked: No, Yes" for Django's "revoked at: Empty, Not empty"."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = str(self.title).removesuffix(" at")

    def choices(self, changelist: Any) -> Iterator[Any]:
        for choice, text in zip(super().choices(changelist), ("All", "No", "Yes"), strict=True):
            yield {**choice, "display": text}


def check_year(moment: datetime | None) -> None:
    """Raise `ValidationError` for a time near an end of Python's calendar: it has none in some time zones."""
    if moment is not None and not 1000 <= moment.year < 9000:
        raise ValidationError("Choose a year from 1000 to 8999.")


class ConstrainedForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A form that checks all constraints; Django's own checks only those of whose columns it has all."""

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]  # django-stubs leave this hook out
        if self.errors:
            return
        try:
            self.instance.validate_constraints()
        except ValidationError as error:
            for each in chain.from_iterable(error.error_dict.values()):
                columns = (each.params or {}).get("unique_check", ())
                typed = [name for name in columns if name in self.fields]
                # At a field, because the theme hides some errors of the whole form.
                self.add_error(typed[-1] if typed else None, each)


class OwnChangesForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A form that changes only the fields that the person has changed since the page was opened.

    The page sends the values with which it was opened. Other fields keep what other people saved meanwhile.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Programs may leave the values out: what they send is compared with the row.
        is_sent = any(self.add_initial_prefix(name) in self.data for name in self.fields)
        is_compared = not self.instance._state.adding and (is_sent or not self.is_bound)
        for field in self.fields.values():
            field.show_hidden_initial = is_compared

    def kept(self) -> dict[str, Any]:
        """Return the row's values of the fields that the person has not changed; a new row has none.

        A rule about several fields is checked with these: what the page still shows may be out of date.
        """
        if self.instance._state.adding:
            return {}
        unchanged = self.fields.keys() - set(self.changed_data)
        columns = {field.name for field in self.instance._meta.concrete_fields}
        return {name: getattr(self.instance, name) for name in unchanged & columns}

    def _post_clean(self) -> None:
        if not self.instance._state.adding:
            for name in self.cleaned_data.keys() - set(self.changed_data):
                del self.cleaned_data[name]
        super()._post_clean()  # type: ignore[misc]  # django-stubs leave this hook out

    def changed_columns(self) -> set[str]:
        """Return the columns of an existing row that the person has changed."""
        columns = {field.name for field in self.instance._meta.concrete_fields}
        return set(self.changed_data) & columns

    def save_changes(self) -> None:
        """Save an existing row, only the columns that the person has changed."""
        self.instance.save(update_fields=self.changed_columns())


class RowSelect(AutocompleteSelect):
    """Django's widget, which asks the database for any text that a URL gives as an id; this one checks it."""

    def optgroups(self, name: str, value: Sequence[str], attr: dict[str, Any] | None = None) -> Any:
        """Show the chosen row if the field offers it."""
        field: Any = self.choices.field
        offered = []
        for each in value:
            with suppress(ValidationError, DataError):
                if field.to_python(each) is not None:
                    offered.append(each)
        return super().optgroups(name, offered, attr)


class ChoosesRows:
    """A mixin before a ModelAdmin: its `autocomplete_fields` use `RowSelect`."""

    autocomplete_fields: Any
    admin_site: Any

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in self.autocomplete_fields:
            kwargs.setdefault("widget", RowSelect(db_field, self.admin_site, using=kwargs.get("using")))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)  # type: ignore[misc]
