"""What to do on an installation that nothing has been asked of yet."""

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from accounts.models import APIKey
from usage.models import Generation, Price


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """What is there already, and what to paste."""

    has_model: bool
    has_key: bool
    model: str
    key_url: str
    curl: str


def first_steps(request: HttpRequest) -> FirstSteps | None:
    """What is left to do before there is anything to see; None once there is a request."""
    if Generation.objects.exists():
        return None
    model = Price.objects.order_by("model").values_list("model", flat=True).first()
    url = request.build_absolute_uri("/v1/chat/completions")
    return FirstSteps(
        model is not None, APIKey.objects.exists(), model or "", reverse("admin:accounts_apikey_add"), _curl(url, model or "MODEL")
    )


def _curl(url: str, model: str) -> str:
    body = f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"curl -N {url} \\\n  -H 'Authorization: Bearer YOUR_KEY' \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"
