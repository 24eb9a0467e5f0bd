"""Admin pages of tenants' rows: people see those of their organizations and change what their role allows.

Operators see all rows.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, get_fields_from_path
from django.contrib.auth import get_permission_codename
from django.core.exceptions import FieldDoesNotExist
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest
from django.urls import reverse

from accounts import access, roles

# So that a page stays small: of more rows, the list's search finds one by its name.
MAX_CHOICES = 30


class SeenRelatedFilter(admin.RelatedFieldListFilter):
    """A filter by a related row, with the names that the person sees; of very many, the chosen one."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        seen = access.seen_by(request.user, field.related_model._default_manager.all())
        ordering = self.field_admin_ordering(field, request, model_admin)
        rows = seen.order_by(*ordering) if ordering else seen
        # A row's name may begin with its owner's.
        found = list(rows.select_related()[: MAX_CHOICES + 1])
        if len(found) > MAX_CHOICES:
            chosen = [pk for pk in self.lookup_val or [] if pk.isascii() and pk.isdecimal() and len(pk) < 19]
            found = list(rows.select_related().filter(pk__in=chosen))
        return [(row.pk, str(row)) for row in found]

    def has_output(self) -> bool:
        return super().has_output() or bool(self.lookup_val)


class NamedFilter(admin.RelatedFieldListFilter):
    """A filter by a related row of very many: its name is typed, with suggestions."""

    template = "accounts/named_filter.html"

    def __init__(self, field: Any, request: HttpRequest, params: Any, *args: Any, **kwargs: Any) -> None:
        self.by_name = name_lookup(kwargs["field_path"])
        super().__init__(field, request, params, *args, **kwargs)

    def expected_parameters(self) -> list[str | None]:
        """Return the parameters; a URL may have an id instead of a name."""
        return [*super().expected_parameters(), self.by_name]

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return []

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the template's context: the field, its value, and the other parameters of the URL."""
        others = changelist.get_query_string(remove=[*filter(None, self.expected_parameters()), "p"])
        source = self.field.model._meta
        search = {
            "app_label": source.app_label,
            "model_name": source.model_name,
            "field_name": self.field.name,
        }
        yield {
            "name": self.by_name,
            "chosen": self._chosen(),
            "others": parse_qsl(others.removeprefix("?")),
            "search": f"{reverse('admin:autocomplete')}?{urlencode(search)}",
        }

    def _chosen(self) -> str:
        named: Any = self.used_parameters.get(self.by_name)
        if named or not self.lookup_val:
            return str(named[-1]) if named else ""
        related: Any = self.field.related_model
        return str(related._default_manager.filter(pk=self.lookup_val[-1]).first() or "")


def name_lookup(field_path: str) -> str:
    """Return the URL parameter that filters by the name of a related row."""
    return f"{field_path}__name__exact"


class TenantAdmin:
    """A mixin before a ModelAdmin or an inline: nothing in it reaches another organization.

    A person does what Django's permissions and their role in the row's organization both allow.
    """

    model: type[Model]
    opts: Any
    operators_fields: tuple[str, ...] = ()
    """Fields that only operators see and set."""
    nobody_may: tuple[str, ...] = ()
    """The actions, of "add", "change" and "delete", that are not offered to anybody."""
    show_full_result_count = False

    # ---- who may do what

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_allowed = super().has_view_permission(request, obj)  # type: ignore[misc]
        return is_allowed and self.role_allows(request, "view", obj)

    def has_add_permission(self, request: HttpRequest, *parent: Any) -> bool:
        """Pass the parent on, which Django gives to inlines only."""
        is_allowed = super().has_add_permission(request, *parent)  # type: ignore[misc]
        return is_allowed and self.role_allows(request, "add", *parent)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_allowed = super().has_change_permission(request, obj)  # type: ignore[misc]
        return is_allowed and self.role_allows(request, "change", obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_allowed = super().has_delete_permission(request, obj)  # type: ignore[misc]
        return is_allowed and self.role_allows(request, "delete", obj)

    def role_allows(self, request: HttpRequest, act: str, obj: Any = None) -> bool:
        """Return whether the role allows it in the row's organization; Django decides without a row."""
        if act in self.nobody_may:
            return False
        if obj is None:
            return True
        row = self.row_of(request, obj)
        if row is None or access.is_operator(request.user):
            return row is not None
        is_theirs = act == "view" or not self.is_operators(row)
        role = _once(request, (type(row), row.pk), lambda: access.role_on(request.user, row))
        return is_theirs and role is not None and self.permission(act) in roles.PERMISSIONS[role]

    def row_of(self, request: HttpRequest, obj: Any) -> Any:
        """Return the row: the theme's buttons pass the id from the URL, where Django passes the row."""
        return obj if isinstance(obj, Model) else self.get_object(request, str(obj))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row. A page that is only read needs it for its form and each of the theme's buttons."""
        read = super().get_object  # type: ignore[misc]
        if request.method != "GET":
            return read(request, object_id, from_field)
        key = (self.model, object_id, from_field)
        return _once(request, key, lambda: read(request, object_id, from_field))

    def permission(self, act: str) -> str:
        return f"{self.opts.app_label}.{get_permission_codename(act, self.opts)}"

    def is_operators(self, row: Any) -> bool:
        """Return whether only an operator may change this row."""
        return False

    # ---- which rows and fields there are

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows with which the list, its search, autocompletion and each row's page begin."""
        rows = access.seen_by(request.user, super().get_queryset(request))  # type: ignore[misc]
        related = getattr(self, "list_select_related", None)  # which an inline does not have
        return rows.select_related(*related) if related else rows

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Fill in the organization of a person who belongs to one only."""
        bound = access.organizations_of(request.user) or ()
        only = {"organization": bound[0]} if len(bound) == 1 else {}
        return {**only, **super().get_changeform_initial_data(request)}  # type: ignore[misc]

    def get_list_filter(self, request: HttpRequest) -> list[Any]:
        """Replace filters by related rows: operators see very many rows and type a name, others choose."""
        related = NamedFilter if access.is_operator(request.user) else SeenRelatedFilter
        filters = super().get_list_filter(request)  # type: ignore[misc]
        return [_by(related, self.model, each) for each in filters]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Return whether the list's filters offer the lookup: a URL can't ask for any other column."""
        filters = self.get_list_filter(request) if request is not None else []
        if any(
            lookup == name_lookup(each[0])
            for each in filters
            if isinstance(each, tuple) and each[1] is NamedFilter
        ):
            return True
        names = ["pk", "id", *map(_asks_for, filters)]
        offered = any(lookup == name or lookup.startswith(f"{name}__") for name in names)
        return offered and super().lookup_allowed(lookup, value, request)  # type: ignore[misc]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Return a form that accepts only rows of organizations in which the person may do this."""
        if access.is_operator(request.user):
            return super().get_form(request, obj, change, **kwargs)  # type: ignore[misc]
        unseen = [name for name in self.operators_fields if hasattr(self.model, name)]
        if unseen:
            # They stay in the form, though not on the page: Django checks a constraint only if the form has
            # all its columns.
            kwargs["fields"] = [*flatten_fieldsets(self.get_fieldsets(request, obj)), *unseen]
        form = super().get_form(request, obj, change, **kwargs)  # type: ignore[misc]
        permission = self.permission("change" if change else "add")
        for name, field in form.base_fields.items():
            rows = field.queryset if isinstance(field, forms.ModelChoiceField) else None
            if rows is not None and access.is_tenants(rows.model):
                # A copy, because a form's own fields are shared by all requests.
                form.base_fields[name] = own = deepcopy(field)
                needed = "" if name in self.operators_fields else permission
                own.queryset = access.where_may(request.user, needed, rows)
        return form

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Leave out fields that only operators see."""
        found = super().get_fieldsets(request, obj)  # type: ignore[misc]
        return [
            (title, options | {"fields": self.shown_to(request, options["fields"])})
            for title, options in found
        ]

    def shown_to(self, request: HttpRequest, fields: Any) -> list[Any]:
        unseen = () if access.is_operator(request.user) else self.operators_fields
        return [name for name in fields if name not in unseen]

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> NoReturn:
        """Raise `Http404`, where Django would redirect: another's row and a missing one look the same."""
        raise Http404(f"There is no such {opts.verbose_name}.")


def _once(request: HttpRequest, key: object, read: Callable[[], Any]) -> Any:
    """Return what `read` returns; it is called once a request for each key."""
    known = vars(request).setdefault("_read_once", {})
    if key not in known:
        known[key] = read()
    return known[key]


def _asks_for(wanted: Any) -> str:
    """Return the URL parameter of a ModelAdmin's filter."""
    if isinstance(wanted, tuple):
        return str(wanted[0])
    return wanted if isinstance(wanted, str) else str(wanted.parameter_name)


def _by(related: type[admin.RelatedFieldListFilter], model: type[Model], wanted: Any) -> Any:
    """Return a ModelAdmin's filter; a filter by a tenant's row becomes one of the class `related`."""
    if not isinstance(wanted, str):
        return wanted
    try:
        field: Any = get_fields_from_path(model, wanted)[-1]
    except FieldDoesNotExist:
        return wanted
    is_tenants = field.is_relation and access.is_tenants(field.related_model)
    return (wanted, related) if is_tenants else wanted
