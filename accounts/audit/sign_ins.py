"""Records signing in and out, failed attempts, and changes of second factors."""

from datetime import timedelta
from typing import Any

from allauth.account.internal.flows.login import get_authentication_records
from allauth.mfa import signals
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models.functions import Now
from django.db.models.signals import post_save, pre_delete
from django.http import HttpRequest

from accounts.audit import recorder
from accounts.audit.models import AuditEntry
from accounts.audit.recorder import Actor
from accounts.forwarding import client_ip

FAILED = "failed to sign in"
# Failed attempts beyond this number, over all names, are not written: anyone could fill the disk.
MAX_FAILED_PER_MINUTE = 30


def listen() -> None:
    user_logged_in.connect(_signed_in, dispatch_uid="audit")
    user_logged_out.connect(_signed_out, dispatch_uid="audit")
    user_login_failed.connect(_failed, dispatch_uid="audit")
    signals.authentication_failed.connect(_wrong_factor, dispatch_uid="audit")
    # Not allauth's own signals of these, which it sends after the commit.
    post_save.connect(_factor_saved, sender=Authenticator, dispatch_uid="audit")
    pre_delete.connect(_factor_removed, sender=Authenticator, dispatch_uid="audit")


def _signed_in(request: HttpRequest | None, user: User, **_: Any) -> None:
    records = get_authentication_records(request, user) if request else []
    ways = ", ".join(each.get("type") or each["method"] for each in records)  # such as "password, totp"
    recorder.write(_actor(request, user), "signed in", user, reason=ways)


def _factor_saved(instance: Authenticator, created: bool, **_: Any) -> None:
    if created:
        recorder.record("added a second factor", instance.user, reason=instance.type)


def _factor_removed(instance: Authenticator, **_: Any) -> None:
    recorder.record("removed a second factor", instance.user, reason=instance.type)


def _wrong_factor(request: HttpRequest, user: User, **_: Any) -> None:
    _failed({"username": user.get_username()}, request)


def _signed_out(request: HttpRequest | None, user: User | None, **_: Any) -> None:
    if user is not None:
        recorder.write(_actor(request, user), "signed out", user)


def _failed(credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any) -> None:
    """Record existing names only: people also type their password into the wrong field."""
    user = User.objects.filter(username=str(credentials.get("username", ""))[:150]).first()
    minute_ago = Now() - timedelta(minutes=1)
    recent = AuditEntry.objects.filter(object_type=User._meta.label_lower).order_by("-id")[
        :MAX_FAILED_PER_MINUTE
    ]
    failed = AuditEntry.objects.filter(pk__in=recent.values("pk"), action=FAILED, at__gte=minute_ago).count()
    if failed < MAX_FAILED_PER_MINUTE:
        ip = client_ip(request) if request else None
        recorder.write(Actor(None, "", ip), FAILED, user or User(username="an unknown name"))


def _actor(request: HttpRequest | None, user: User) -> Actor:
    return Actor(user.pk, user.get_username(), client_ip(request) if request else None)
