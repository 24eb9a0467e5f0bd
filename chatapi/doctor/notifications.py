"""Checks the mail server, without sending mail, and looks for events and messages that are not delivered."""

import smtplib
import ssl
from collections.abc import Iterator
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import get_connection

from chatapi.doctor.finding import Finding, ok, warning
from chatapi.notifications import backlog
from chatapi.notifications.backlog import MAIL, Deliveries
from chatapi.notifications.dispatch import mailable
from chatapi.notifications.models import DeliveryAttempt, WebhookEndpoint
from usage.database.clock import database_now
from usage.formatting import duration
from usage.models import SpendAlert

# An event that waits longer, and a delivery that is retried for longer, gets a warning.
EVENT_WAITS, DELIVERY_WAITS = timedelta(minutes=1), timedelta(hours=1)
MOST_ENDPOINTS = 10
_LOCAL_HOSTS = {"127.0.0.1", "localhost", "::1"}
_SMTP = "django.core.mail.backends.smtp.EmailBackend"


# ---- mail


def check_mail() -> Iterator[Finding]:
    """Yield whether the mail server takes mail of this service; it connects and signs in, and sends none."""
    if not settings.SENDS_EMAIL:
        yield ok("mail", "Not set up: no mail is sent. CHATAPI_EMAIL_URL names a mail server.")
        return
    if settings.EMAIL_BACKEND == _SMTP:
        yield _server()
    else:
        yield warning(
            "mail", "It is printed, and sent to nobody.", "Name a mail server in CHATAPI_EMAIL_URL."
        )
    if not settings.PUBLIC_URL:
        yield warning(
            "mail",
            "Mail about events has no links, because CHATAPI_PUBLIC_URL is empty.",
            "Set it to the URL of this service, such as https://chat.example.com.",
        )


def _server() -> Finding:
    place = f"{settings.EMAIL_HOST}:{settings.EMAIL_PORT}"
    try:
        with get_connection():
            pass
    except (OSError, smtplib.SMTPException, ValueError) as error:
        return warning("mail", *_explained(place, error))
    has_tls = settings.EMAIL_USE_TLS or settings.EMAIL_USE_SSL
    if not has_tls and settings.EMAIL_HOST not in _LOCAL_HOSTS:
        return warning(
            "mail",
            f"{place} answers, but mail goes there in plain text.",
            "Add ?tls=starttls to CHATAPI_EMAIL_URL, or use smtps://.",
        )
    over = " over TLS" if has_tls else ""
    takes = " and takes the password" if settings.EMAIL_HOST_USER else ""
    return ok("mail", f"{place} answers{over}{takes}; mail is from {settings.DEFAULT_FROM_EMAIL}.")


def _explained(place: str, error: Exception) -> tuple[str, str]:
    """Return the problem and its remedy, without the server's answer, which may quote what was sent."""
    url = "CHATAPI_EMAIL_URL"
    match error:
        case smtplib.SMTPAuthenticationError():
            return (
                f"{place} refuses the user or the password ({error.smtp_code}).",
                f"Correct them in {url}, percent-encoded.",
            )
        case smtplib.SMTPNotSupportedError():
            return (
                f"{place} offers no {'TLS by STARTTLS' if settings.EMAIL_USE_TLS else 'sign-in'}.",
                f"Use smtps:// in {url}, or another port or server.",
            )
        case ssl.SSLCertVerificationError():
            return (
                f"The certificate of {place} is not trusted: {error.verify_message}.",
                "Use the name in the certificate; SSL_CERT_FILE, with compose TRUSTED_CA_FILE, names a file"
                " with an authority of your own.",
            )
        case ssl.SSLError():
            return (
                f"{place} does not speak TLS as expected ({error.reason}).",
                f"Use smtps:// in {url} for TLS from the start (465), ?tls=starttls for a later one (587).",
            )
    reason = type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, smtplib.SMTPException):
        reason = error.strerror or reason
    return (
        f"{place} does not answer: {reason}.",
        f"Check host and port in {url}, and whether a firewall lets this machine connect to them.",
    )


# ---- what has not been delivered


def check_deliveries() -> Iterator[Finding]:
    """Yield events and deliveries that wait or have failed, and the endpoints that fail."""
    now, event = database_now(), backlog.oldest_event()
    if event is not None and now - event > EVENT_WAITS:
        yield warning(
            "events",
            f"The oldest waits for {_age(now, event)}: no reaper delivers.",
            "Start one: manage.py serve --only reaper.",
        )
    yield from _mail(now, backlog.deliveries(now)[MAIL])
    endpoints = backlog.endpoints()
    for row in backlog.failing().select_related("organization").order_by("pk")[:MOST_ENDPOINTS]:
        yield _failing(now, row)
    if endpoints.failing > MOST_ENDPOINTS:
        more = endpoints.failing - MOST_ENDPOINTS
        yield warning("webhooks", f"{more} more endpoints fail.", "See whether reapers reach the internet.")
    if not any((endpoints.working, endpoints.failing, endpoints.disabled)):
        yield ok(
            "webhooks", "None is set up; organizations add them in the console, and operators in the admin."
        )
    elif not endpoints.failing:
        disabled = f", {endpoints.disabled} disabled" if endpoints.disabled else ""
        yield ok("webhooks", f"{endpoints.working} in order{disabled}.")


def check_alerts() -> Iterator[Finding]:
    """Yield the spend alerts whose mail nobody gets: their members have left, or see single projects."""
    if not settings.SENDS_EMAIL:
        return
    rows = SpendAlert.objects.exclude(project__is_active=False).select_related("organization", "project")
    readers: dict[int, set[int]] = {}
    for row in rows.order_by("organization", "pk"):
        if row.organization_id not in readers:
            readers[row.organization_id] = {person.pk for person in mailable(row.organization_id)}
        # An alert without recipients is for webhooks.
        if row.recipients and readers[row.organization_id].isdisjoint(row.recipients):
            yield warning(
                "mail",
                f"Nobody gets the spend alert of {row}.",
                "An admin of the organization replaces it in Budgets.",
            )


def _mail(now: datetime, found: Deliveries) -> Iterator[Finding]:
    remedy = "Correct what the line about the mail server says, or the address of the person in Users."
    oldest = found.oldest_begun_at
    if found.retrying and oldest is not None and now - oldest > DELIVERY_WAITS:
        tried = backlog.waiting().filter(endpoint__isnull=True, attempts__gt=0)
        log = DeliveryAttempt.objects.filter(delivery__in=tried.order_by("due_at").values("pk")[:1])
        error = log.order_by("-pk").values_list("error", flat=True).first() or "no attempt is recorded"
        mails = "1 mail" if found.retrying == 1 else f"{found.retrying} mails"
        text = f"{mails} could not be sent yet; the oldest has been retried for {_age(now, oldest)}: {error}."
        yield warning("mail", text, remedy)
    if found.failed:
        mails = "1 mail was" if found.failed == 1 else f"{found.failed} mails were"
        text = f"{mails} given up in the last day, after three days of attempts."
        yield warning("mail", text, remedy)


def _failing(now: datetime, row: WebhookEndpoint) -> Finding:
    # Without the path, which may be a secret.
    place = f"{urlsplit(row.url).hostname} of {row.organization or 'the service'}"
    owner = "Its organization's page Webhooks" if row.organization else "The admin's page Webhooks"
    last = DeliveryAttempt.objects.filter(delivery__endpoint=row).exclude(error="").order_by("-pk").first()
    text = f"failed {_age(now, last.at)} ago: {last.error.rstrip('.')}" if last else "fails"
    return warning(
        "webhooks",
        f"{place} {text}.",
        f"{owner} has the log; repair or disable the endpoint there.",
    )


def _age(now: datetime, then: datetime) -> str:
    return duration((now - then) / timedelta(milliseconds=1))
