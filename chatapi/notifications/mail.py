"""Sends an event to a person by mail; each mail says why it was sent, and where to switch it off."""

import smtplib
import time
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import EmailMessage, get_connection
from django.urls import reverse

from accounts.sign_in.mail import kind_of
from chatapi.notifications import event_links
from chatapi.notifications.queue import Attempt
from usage.models import Event, EventKind
from usage.notifications import texts

# The kinds whose sentence names a day or a month of the organization.
_OF_PERIODS = {EventKind.BUDGET, EventKind.SPEND, EventKind.ALERT}


def send(event: Event, person: User) -> Attempt:
    """Send the event once. It blocks until the mail server has answered, and reads no database."""
    if not settings.SENDS_EMAIL:  # Django's default backend would accept the mail and lose it
        return Attempt(0, error="no mail server is set up")
    began, error = time.monotonic(), ""
    try:
        # The connection is also closed if opening it fails halfway, such as by a wrong password.
        with get_connection() as connection:
            connection.send_messages([message(event, person)])
    except (OSError, smtplib.SMTPException, ValueError) as exception:
        error = f"the mail server: {kind_of(exception)}"
    return Attempt(round((time.monotonic() - began) * 1_000), error=error)


def message(event: Event, person: User) -> EmailMessage:
    """Return the mail; its Message-ID is the same in each attempt."""
    service = urlsplit(settings.PUBLIC_URL).netloc or "the service"
    place = event.organization.name if event.organization else service
    sender = settings.DEFAULT_FROM_EMAIL
    domain = sender.rpartition("@")[2].rstrip(">")
    return EmailMessage(
        subject=f"{event.data.get('subject_prefix', '')} {texts.title(event, place)}".lstrip(),
        body=_body(event),
        from_email=sender,
        to=[person.email],
        headers={
            "Message-ID": f"<{event.webhook_id}.{person.pk}@{domain}>",
            "Auto-Submitted": "auto-generated",
        },
    )


def _body(event: Event) -> str:
    parts = [texts.sentence(event)]
    if path := settings.PUBLIC_URL and event_links.path(event):
        parts.append(f"See {settings.PUBLIC_URL}{path}")
    # During an update, an event may be of a kind that only the newer release can explain.
    if event.kind in texts.MEANINGS:
        zone = event.organization.time_zone if event.organization and event.kind in _OF_PERIODS else ""
        periods = f" Days, weeks and months follow the time zone {zone}." if zone else ""
        parts.append(f"{texts.MEANINGS[event.kind]}{periods}")
    parts.append(f"--\nYou get this mail because {_reason(event)}")
    return "\n\n".join(parts) + "\n"


def _reason(event: Event) -> str:
    """Return why the person gets the mail, and where that is changed."""
    if event.kind == EventKind.ALERT and event.organization:
        alert = f"a spend alert of {event.organization.name} names you"
        return f"{alert}.\nOwners and admins change it {_where(event)}"
    role = f"a member of {event.organization.name}" if event.organization else "an operator"
    kind = event.get_kind_display()
    return f'you are {role}, and get mail of the kind "{kind}".\nSwitch it off {_where(event)}'


def _where(event: Event) -> str:
    """Return where the mail is switched off: a link if the service knows its own URL, or else words."""
    if event.organization_id is None:
        path, page = reverse("admin:mail"), "on the page Mail of the administration"
    elif event.kind == EventKind.ALERT:
        path = reverse("console:budgets", args=[event.organization_id])
        page = "on the page Budgets and limits of the console"
    else:
        path = reverse("console:notifications", args=[event.organization_id])
        page = "on the page Notifications of the console"
    return f"at {settings.PUBLIC_URL}{path}" if settings.PUBLIC_URL else f"{page}."
