"""Certificates of authorities: their list, uploading one, saying where it is active, removing it."""

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Count, Prefetch
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import certificates, memberships
from accounts.models import Certificate, Project
from accounts.models.organizations import identifier
from chatapi.console.member_pages import offer
from chatapi.console.tenancy import Console, Link, page, project_name, render

SOON = timedelta(days=30)


class UploadForm(forms.Form):
    """A new certificate."""

    name = forms.CharField(required=False, max_length=100, validators=[identifier])
    certificate = forms.CharField(
        widget=forms.Textarea(
            {"rows": 8, "class": "code", "wrap": "off", "placeholder": "-----BEGIN CERTIFICATE-----"}
        ),
        help_text="The certificate of the authority (CA) that issues your clients' certificates, as PEM. No "
        "private key.",
    )


class CertificateForm(forms.Form):
    """A certificate's name, and for which keys it is active."""

    name = forms.CharField(required=False, max_length=100, validators=[identifier])
    is_active = forms.BooleanField(label="Active for all keys of the organization", required=False)
    projects = forms.MultipleChoiceField(label="Active for the keys of these projects", required=False)
    opened_with = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any, console: Console, row: Certificate) -> None:
        opened_with, own = certificates.state(row), list(row.projects.all())
        initial = {
            "name": row.name,
            "is_active": row.is_active,
            "projects": [str(each.pk) for each in own],
            "opened_with": opened_with,
        }
        super().__init__(data, initial=initial)
        # An archived project stays a choice.
        self.offered = {str(each.pk): each for each in [*console.projects, *own]}
        offer(self.fields["projects"], [(key, project_name(each)) for key, each in self.offered.items()])

    @property
    def chosen(self) -> list[Project]:
        """Return the projects of a valid form."""
        return [self.offered[each] for each in self.cleaned_data["projects"]]


@require_safe
@page("accounts.view_certificate")
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the certificates with their state, each with the names of its first projects."""
    first = Prefetch("projects", Project.objects.all()[: memberships.MAX_NAMED], to_attr="first_projects")
    rows = Certificate.objects.filter(organization=console.organization).order_by("-pk")
    counted: list[Any] = list(rows.annotate(projects_counted=Count("projects")).prefetch_related(first))
    context = {
        "title": "Client certificates",
        "certificates": [(row, _validity(row), _places(row)) for row in counted],
        "are_received": certificates.are_received(),
    }
    return render(request, console, "certificates.html", context)


def _validity(row: Certificate) -> tuple[str, str]:
    """Return whether the certificate is valid, and the class of its badge."""
    now = timezone.now()
    if row.expires_at <= now:
        return "expired", "bad"
    if row.valid_at > now:
        return "not valid yet", "plain"
    return ("expires soon", "warn") if row.expires_at <= now + SOON else ("valid", "good")


def _places(row: Any) -> str:
    """Return for which keys the certificate is active; empty: for none."""
    names = ["the whole organization"] if row.is_active else []
    names += [project_name(each) for each in row.first_projects]
    more = row.projects_counted - len(row.first_projects)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.add_certificate")
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new certificate; store it."""
    form = UploadForm(request.POST or None)
    if form.is_valid():
        sent = form.cleaned_data
        try:
            row = certificates.create(console.organization.pk, sent["certificate"], sent["name"])
        except ValidationError as error:
            form.add_error(None, error)
        else:
            messages.success(request, "The certificate is stored. Say where it is to be active.")
            return redirect(console.url("certificate", row.pk))
    back = console.url("certificates")
    context = {
        "title": "New certificate",
        "form": form,
        "submit": "Upload",
        "back": back,
        "parent": Link("Client certificates", back, is_current=False),
    }
    return render(request, console, "limit_form.html", context, 400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_certificate")
def change_page(request: HttpRequest, console: Console, certificate_id: int) -> HttpResponse:
    """Show a certificate; change its name, and where it is active."""
    row = _certificate(console, certificate_id)
    form = CertificateForm(request.POST or None, console, row)
    if form.is_valid():
        sent = form.cleaned_data
        try:
            certificates.change(
                row,
                sent["name"],
                is_active=sent["is_active"],
                projects=form.chosen,
                known=sent["opened_with"],
            )
        except ValidationError as error:
            form.add_error(None, error.messages)
        else:
            messages.success(request, "The certificate is saved. This holds within a second.")
            return redirect(console.url("certificates"))
    context = {
        "title": f"Certificate {form.initial['name'] or row.fingerprint[:16]}",
        "form": form,
        "row": row,
        "validity": _validity(row),
        "fingerprint_bytes": [row.fingerprint[at : at + 2].upper() for at in range(0, 64, 2)],
        "is_used": form.initial["is_active"] or bool(form.initial["projects"]),
        "are_received": certificates.are_received(),
    }
    return render(request, console, "certificate.html", context, 400 if form.errors else 200)


@require_POST
@page("accounts.delete_certificate")
def remove(request: HttpRequest, console: Console, certificate_id: int) -> HttpResponse:
    """Remove a certificate that is active nowhere."""
    row = _certificate(console, certificate_id)
    try:
        certificates.remove(row)
    except ValidationError as error:
        messages.error(request, error.messages[0])
        return redirect(console.url("certificate", row.pk))
    messages.success(request, "The certificate is removed.")
    return redirect(console.url("certificates"))


def _certificate(console: Console, certificate_id: int) -> Certificate:
    rows = Certificate.objects.filter(organization=console.organization, pk=certificate_id)
    row: Certificate | None = rows.first()
    if row is None:
        raise Http404("There is no such certificate.")
    return row
