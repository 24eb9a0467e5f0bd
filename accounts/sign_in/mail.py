"""Mail about accounts. Each template's first line is the subject."""

import logging
from smtplib import SMTPException, SMTPRecipientsRefused
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage
from django.http import HttpRequest
from django.template.loader import render_to_string

log = logging.getLogger(__name__)


def absolute_url(request: HttpRequest, path: str) -> str:
    """Return the URL of a page, for a link in a mail.

    Without `CHATAPI_PUBLIC_URL` its host is the one in the visitor's request.
    """
    return f"{settings.PUBLIC_URL}{path}" if settings.PUBLIC_URL else request.build_absolute_uri(path)


def host(request: HttpRequest) -> str:
    return urlsplit(absolute_url(request, "/")).netloc


def service(request: HttpRequest | None) -> str:
    """Return the name of the service; a command, which has no request, may not know its host."""
    return host(request) if request else urlsplit(settings.PUBLIC_URL).netloc or "the service"


def send(template: str, to: str, **context: Any) -> bool:
    """Send the mail of `mail/TEMPLATE.txt`; return False if there is no mail server or it fails."""
    if not settings.SENDS_EMAIL:
        return False
    days = settings.PASSWORD_RESET_TIMEOUT // 86_400
    subject, _, body = render_to_string(f"mail/{template}.txt", context | {"days": days}).partition("\n")
    try:
        # Otherwise the notice of an absent person would answer.
        headers = {"Auto-Submitted": "auto-generated"}
        EmailMessage(subject.strip(), f"{body.strip()}\n", to=[to], headers=headers).send()
    except (SMTPException, OSError, ValueError) as error:  # the last one for an address that no mail can have
        log.warning("the mail %r was not sent: %s", template, kind_of(error))
        return False
    return True


def kind_of(error: Exception) -> str:
    """Return the kind and the code of an error; an answer of SMTP may quote what was sent."""
    code = getattr(error, "smtp_code", None)
    if isinstance(error, SMTPRecipientsRefused):
        ((code, _),) = error.recipients.values()
    return f"{type(error).__name__}{f' {code}' if code else ''}"
