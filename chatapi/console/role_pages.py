"""Roles that the organization has made: their list, making, changing and removing one."""

from collections.abc import Iterator
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count
from django.forms import BoundField
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import own_roles, roles
from accounts.models import MAX_DESCRIPTION_CHARS, OwnRole
from chatapi.console.member_pages import own_roles_of
from chatapi.console.tenancy import Console, page, render


class RoleForm(forms.Form):
    """A role's name, description, and what it permits of that which the person may do."""

    name = forms.CharField(max_length=100, validators=OwnRole._meta.get_field("name").validators)
    description = forms.CharField(
        required=False,
        max_length=MAX_DESCRIPTION_CHARS,
        help_text="Whom it is for. Shown where the role is given.",
    )
    opened_with = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any, console: Console, row: OwnRole | None = None) -> None:
        initial: dict[str, Any] = {"name": "", "description": "", "opened_with": ""}
        if row is not None:
            permitted = own_roles.permissions_of(row.permissions)
            initial = {"name": row.name, "description": row.description, "opened_with": own_roles.state(row)}
            initial |= dict.fromkeys(own_roles.chosen(permitted), True)
        super().__init__(data, initial=initial)
        for name, choice in own_roles.CHOICES.items():
            if all(map(console.may, choice.permissions)):
                self.fields[name] = forms.BooleanField(label=choice.text, required=False)

    @property
    def groups(self) -> Iterator[tuple[str, list[BoundField]]]:
        """Yield the headings with the checkboxes below them."""
        for heading, names in own_roles.GROUPS.items():
            if offered := [self[name] for name in names if name in self.fields]:
                yield heading, offered

    @property
    def permissions(self) -> frozenset[str]:
        """Return the permissions of a valid form."""
        return own_roles.with_choices([name for name in own_roles.CHOICES if self.cleaned_data.get(name)])

    def clean(self) -> dict[str, Any]:
        """Refuse a choice without another one that it needs."""
        data = self.cleaned_data
        for name, choice in own_roles.CHOICES.items():
            for needed in choice.needs if data.get(name) else ():
                if not data.get(needed):
                    self.add_error(name, f"This needs “{own_roles.CHOICES[needed].text}”, too.")
        return data


@require_safe
@page("accounts.view_member")
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the roles, with what each permits and how many members have it."""
    may_change = console.may("accounts.change_member")
    rows: Any = own_roles_of(console).annotate(members_counted=Count("members"))
    context = {
        "title": "Roles",
        "roles": [
            (row, own_roles.words(row.permissions), may_change and _may_all(console, row)) for row in rows
        ],
        "meanings": [(role.value, meaning) for role, meaning in roles.MEANINGS.items()],
        "may_change": may_change,
    }
    return render(request, console, "roles.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_member")
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new role; make it."""
    form = RoleForm(request.POST or None, console)
    if form.is_valid():
        sent = form.cleaned_data
        try:
            own_roles.create(console.organization.pk, sent["name"], sent["description"], form.permissions)
        except ValidationError as error:
            form.add_error(None, error)
        else:
            messages.success(request, f"The role {sent['name']} is made. Give it in Members.")
            return redirect(console.url("own_roles"))
    context = {"title": "New role", "form": form, "submit": "Make the role"}
    return render(request, console, "role.html", context, 400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_member")
def change_page(request: HttpRequest, console: Console, role_id: int) -> HttpResponse:
    """Show a role's name, description and what it permits; change them."""
    row = _changeable(console, role_id)
    form = RoleForm(request.POST or None, console, row)
    if form.is_valid():
        sent = form.cleaned_data
        try:
            own_roles.change(
                row, sent["name"], sent["description"], form.permissions, known=sent["opened_with"]
            )
        except ValidationError as error:
            form.add_error(None, error)
        else:
            messages.success(request, f"The role {row.name} is changed. This holds at once.")
            return redirect(console.url("own_roles"))
    context = {"title": f"Role {form.initial['name']}", "form": form, "submit": "Save", "role": row}
    return render(request, console, "role.html", context, 400 if form.errors else 200)


@require_POST
@page("accounts.change_member")
def remove(request: HttpRequest, console: Console, role_id: int) -> HttpResponse:
    """Remove a role that nobody has."""
    row = _changeable(console, role_id)
    name = row.name
    try:
        own_roles.remove(row)
    except ValidationError as error:
        messages.error(request, error.messages[0])
    else:
        messages.success(request, f"The role {name} is removed.")
    return redirect(console.url("own_roles"))


def _may_all(console: Console, row: OwnRole) -> bool:
    """Return whether the person may do all that the role permits, so that the form has all of its choices."""
    return all(map(console.may, own_roles.permissions_of(row.permissions) - own_roles.BASE))


def _changeable(console: Console, role_id: int) -> OwnRole:
    """Return the role; raises `PermissionDenied` if it permits more than the person may do."""
    row = own_roles_of(console).filter(pk=role_id).first()
    if row is None:
        raise Http404("There is no such role.")
    if not _may_all(console, row):
        raise PermissionDenied
    return row
