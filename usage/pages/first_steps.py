"""What to do while nothing has been asked yet: of the installation, or of a person's organizations."""

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from accounts import access
from accounts.models import APIKey
from usage.models import Generation, Kind, LedgerEntry, Price


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """What is there already, and what to paste."""

    has_model: bool
    has_key: bool
    model: str
    key_url: str
    """Where to make a key; blank for who may not."""
    curl: str
    is_operators: bool
    """Whether it is up to the reader that a model is served."""


def first_steps(request: HttpRequest) -> FirstSteps | None:
    """What is left to do before there is anything to see; None once there is a request."""
    user = request.user
    if any(
        access.seen_by(user, rows).exists()
        for rows in (Generation.objects.all(), LedgerEntry.objects.filter(kind=Kind.CHARGE))
    ):
        return None
    model = Price.objects.order_by("model").values_list("model", flat=True).first()
    url = request.build_absolute_uri("/v1/chat/completions")
    return FirstSteps(
        has_model=model is not None,
        has_key=access.seen_by(user, APIKey.objects.all()).exists(),
        model=model or "",
        key_url=reverse("admin:accounts_apikey_add") if user.has_perm("accounts.add_apikey") else "",
        curl=_curl(url, model or "MODEL"),
        is_operators=access.is_operator(user),
    )


def _curl(url: str, model: str) -> str:
    body = f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"curl -N {url} \\\n  -H 'Authorization: Bearer YOUR_KEY' \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"
