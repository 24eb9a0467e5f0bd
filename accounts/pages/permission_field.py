"""The choice of Django permissions on the pages of users and groups: those that some page asks for, in the
words of the menu.
"""

from collections.abc import Iterator
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import Permission
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from accounts.pages.admin_mixins import ReadOnlyAdmin

# Permissions that pages ask for besides those of their lists, and lists that the menu calls otherwise.
_WORDS = {
    "accounts.add_certificate": "Client certificates: add",
    "accounts.change_certificate": "Client certificates: change",
    "accounts.delete_certificate": "Client certificates: delete",
    "accounts.view_certificate": "Client certificates: view",
    "audit.view_auditentry": "Audit log: view",
    "chatapi.read_storedresponse": "Stored responses: read the content",
    "payment.add_payment": "Payments: pay",
    "usage.add_budgetlimit": "Budgets: add",
    "usage.add_ledgerentry": "Ledger entries: grant and refund credit, correct charges",
    "usage.change_budgetlimit": "Budgets: change",
    "usage.change_generation": "Requests: stop",
    "usage.delete_budgetlimit": "Budgets: delete",
    "usage.view_budget": "Budgets of all periods: view",
    "usage.view_budgetlimit": "Budgets: view",
    "usage.view_generation": "Live and requests: view",
    "usage.view_hourlyusage": "Overview and hourly usage: view",
    "usage.view_statement": "Statements: view",
}
# What the pages of these rows refuse to everybody, or allow superusers only, whatever permissions they have.
_REFUSED = frozenset(
    {
        "accounts.delete_apikey",
        "accounts.delete_organization",
        "accounts.delete_project",
        "auth.change_group",
        "auth.delete_user",
        "sign_in.add_identityprovider",
        "usage.add_credit",
        "usage.change_discount",
        "usage.change_price",
        "usage.delete_credit",
        "usage.delete_discount",
    }
)


def _name(permission: Permission) -> str:
    return f"{permission.content_type.app_label}.{permission.codename}"


def words(permission: Permission) -> str:
    """Return the page and what the permission allows there, such as "API keys: add"; of a permission that no
    page asks for, Django's own words.
    """
    model = permission.content_type.model_class()
    act = permission.codename.removesuffix(f"_{permission.content_type.model}")
    if (found := _WORDS.get(_name(permission))) or model is None:
        return found or str(permission)
    title = str(model._meta.verbose_name_plural)
    return f"{title[:1].upper()}{title[1:]}: {act}"


def offered() -> QuerySet[Permission]:
    """Return the permissions that a page or a button asks for."""
    names = {*_WORDS}
    for model, page in admin.site._registry.items():
        acts = ("view",) if isinstance(page, ReadOnlyAdmin) else ("add", "change", "delete", "view")
        names |= {f"{model._meta.app_label}.{act}_{model._meta.model_name}" for act in acts}
    chosen = Q(pk__in=[])
    for app, _, codename in (each.partition(".") for each in names - _REFUSED):
        chosen |= Q(content_type__app_label=app, codename=codename)
    return Permission.objects.filter(chosen)


class _Sorted(forms.models.ModelChoiceIterator):  # type: ignore[type-arg]  # not generic at run time
    def __iter__(self) -> Iterator[Any]:
        yield from sorted(super().__iter__(), key=lambda choice: str(choice[1]).casefold())


class PermissionField(forms.ModelMultipleChoiceField):  # type: ignore[type-arg]  # as above
    """Permissions with their words, sorted by these."""

    iterator = _Sorted

    def label_from_instance(self, obj: Any) -> str:
        return words(obj)


class ChoosesPermissions:
    """A mixin before a ModelAdmin of rows with permissions: it offers those that have an effect, and those
    that the row has already, so that saving it takes none away.
    """

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.related_model is Permission:
            match = request.resolver_match
            row_id = match.kwargs.get("object_id") if match else None
            # As Django reads it: " 1" is the row 1, too.
            row = self.get_object(request, unquote(row_id)) if row_id else None  # type: ignore[attr-defined]
            owned = Q(**{db_field.related_query_name(): row}) if row else Q(pk__in=[])
            found = Permission.objects.filter(Q(pk__in=offered()) | owned).distinct()
            kwargs |= {"queryset": found.select_related("content_type"), "form_class": PermissionField}
        return super().formfield_for_manytomany(db_field, request, **kwargs)  # type: ignore[misc]
