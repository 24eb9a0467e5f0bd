"""Spend alerts: adding one of the organization or of a project, and removing it. Budgets lists them."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST

from chatapi.console.tenancy import Console, page, render
from chatapi.notifications.dispatch import mailable
from usage.models import SpendAlert
from usage.notifications import spend_alerts
from usage.notifications.spend_alerts import MAX_ALERTS
from usage.pages.forms import USDField

_MAIL = (
    "Once in each month, when its spending has reached the amount, these members get a mail, even if they "
    "have switched mail off in Notifications. An alert refuses no request; a budget does."
)
_NO_MAIL = (
    "This service sends no mail: the event is in Notifications, and goes to webhooks. An alert refuses no "
    "request; a budget does."
)


class SpendAlertForm(forms.Form):
    """A new alert: its amount, the organization or project whose spending counts, and the recipients."""

    threshold = USDField(label="Amount in USD", widget=forms.TextInput, help_text="Of a month.")
    project = forms.ChoiceField(label="Spending of", required=False)
    recipients = forms.MultipleChoiceField(label="Mail to", widget=forms.CheckboxSelectMultiple)

    def __init__(self, data: Any, console: Console) -> None:
        super().__init__(data, initial={"project": console.project and console.project.pk})
        projects, recipients = (self.fields[name] for name in ("project", "recipients"))
        projects.choices = [  # type: ignore[attr-defined]
            ("", "all projects"), *((str(row.pk), row.name) for row in console.projects),
        ]  # fmt: skip
        recipients.choices = [  # type: ignore[attr-defined]
            (str(person.pk), person.email) for person in mailable(console.organization.pk)
        ]
        if not recipients.choices:  # type: ignore[attr-defined]
            recipients.required = False
            recipients.help_text = "No member has signed in and has an address yet: nobody gets a mail."

    def clean_threshold(self) -> int:
        """Refuse 0, which every month has reached when it begins."""
        threshold = int(self.cleaned_data["threshold"])
        if threshold == 0:
            raise forms.ValidationError("Enter more than 0.")
        return threshold


@require_http_methods(["GET", "HEAD", "POST"])
@page("usage.add_budgetlimit")
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new alert; save it."""
    if not console.may("accounts.view_member"):  # it names members, with their addresses
        raise PermissionDenied
    form = SpendAlertForm(request.POST or None, console)
    if form.is_valid():
        sent = form.cleaned_data
        alert = SpendAlert(
            organization=console.organization,
            project_id=int(sent["project"]) if sent["project"] else None,
            threshold_nanodollars=sent["threshold"],
            recipients=sorted(map(int, sent["recipients"])),
        )
        if spend_alerts.add(alert):
            messages.success(request, "The spend alert is set. It is checked every minute.")
            return redirect(console.url("budgets"))
        form.add_error(None, f"There are {MAX_ALERTS} spend alerts already. Remove one first.")
    context = {
        "title": "New spend alert",
        "form": form,
        "submit": "Set the alert",
        "back": console.url("budgets"),
        "intro": _MAIL if settings.SENDS_EMAIL else _NO_MAIL,
    }
    return render(request, console, "limit_form.html", context, 400 if form.errors else 200)


@require_POST
@page("usage.delete_budgetlimit")
def remove(request: HttpRequest, console: Console, alert_id: int) -> HttpResponse:
    """Remove an alert; nobody removes what they don't see."""
    if not console.may("accounts.view_member"):
        raise PermissionDenied
    alert = console.rows(SpendAlert.objects.filter(pk=alert_id)).first()
    if alert is None:
        raise Http404("There is no such spend alert.")
    alert.delete()
    messages.success(request, "The spend alert is removed.")
    return redirect(console.url("budgets"))


def alert_lines(console: Console) -> list[tuple[SpendAlert, str, list[str]]]:
    """Return each alert with the name of its project and the addresses of its recipients; if a project is
    chosen, only that project's alerts.
    """
    rows = SpendAlert.objects.filter(organization=console.organization).select_related("project")
    found = list((rows if console.project is None else rows.filter(project=console.project)).order_by("pk"))
    return [
        (row, row.project.name if row.project else "all projects", emails)
        for row, emails in zip(found, spend_alerts.addresses(found), strict=True)
    ]
