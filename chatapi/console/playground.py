"""The playground: requests from the page itself, with a key that lasts minutes, and their code."""

import json
from datetime import timedelta

from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from accounts import keys
from accounts.audit import recorder
from accounts.models import APIKey, KeyScope, Project
from chatapi.console.no_credit import NoCredit
from chatapi.console.offers import chat_offers
from chatapi.console.tenancy import Console, page, render
from chatapi.snippets import STREAMING, base_url, code_of
from chatapi.wire.protocols import protocol_of
from usage.notifications.watch import KEY_DAYS

KEY_LASTS = timedelta(minutes=15)
# The session's entry with the ids of its keys, by project and kind.
_KEYS = "playground_keys"
_DIALECTS = [name for name in protocol_of(STREAMING["chat"].path).dialects if name]


@require_safe
@page("accounts.add_apikey", keeps_to_projects=True)
def playground_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the playground; its script sends the request."""
    models = chat_offers(console)
    wished = request.GET.get("model", "")
    context = {
        "title": "Playground",
        "models": models,
        "model": wished,
        "protocols": [(name, its.title) for name, its in STREAMING.items()],
        "dialects": _DIALECTS,
        "may_add_project": console.may("accounts.add_project"),
        "no_credit": NoCredit.of(console),
    }
    return render(request, console, "playground.html", context)


@require_POST
@page("accounts.add_apikey", keeps_to_projects=True)
def request_code(request: HttpRequest, console: Console) -> HttpResponse:
    """Return a request's code in each client, with the reader's base URL."""
    protocol, dialect = request.POST.get("protocol", ""), request.POST.get("dialect", "")
    if protocol not in STREAMING or dialect not in _DIALECTS:
        return HttpResponseBadRequest("Unknown protocol or dialect.")
    origin = base_url(request)
    if len(protocol_of(STREAMING[protocol].path).dialects) > 1:
        origin += f"/{dialect}"
    try:
        body = json.loads(request.POST.get("body", ""))
        if not isinstance(body, dict):
            raise ValueError
        return JsonResponse(code_of(protocol, origin=origin, key="YOUR_KEY", body=body))
    except (ValueError, RecursionError):
        return HttpResponseBadRequest("body: a JSON object is expected.")


@require_POST
@page("accounts.add_apikey", keeps_to_projects=True)
def new_key(request: HttpRequest, console: Console) -> HttpResponse:
    """Return a new secret of the session's key for the project; of its test key if the form asks for one.

    The old secret stops working. After a day the session gets another key, and the old one has expired
    within `KEY_LASTS`.
    """
    wished = request.POST.get("project", "")
    project = next((row for row in console.projects if str(row.pk) == wished), None)
    if project is None:
        raise Http404("There is no such project.")
    is_test = request.POST.get("test_key") == "on"
    known, name = request.session.get(_KEYS, {}), f"{project.pk}{' test' if is_test else ''}"
    row, secret = _secret(project, known.get(name), is_test=is_test)
    request.session[_KEYS] = known | {name: row.pk}
    return JsonResponse({"key": secret})


@transaction.atomic
def _secret(project: Project, key_id: int | None, *, is_test: bool) -> tuple[APIKey, str]:
    """Give the session's key a new secret and a later expiry, or make a key; return it with the secret.

    A session has one key of each kind, so that the list of keys stays short.
    """
    expires_at = timezone.now() + KEY_LASTS
    # Not a key that a person with a higher role has made an admin key: its secret is not for this person.
    usable = APIKey.objects.filter(
        pk=key_id or 0, project=project, is_admin=False, is_active=True, revoked_at=None
    )
    # A key that lives for a day or longer would cause an event before it expires.
    usable = usable.filter(created_at__gt=expires_at - timedelta(days=min(KEY_DAYS)))
    row = usable.select_for_update().first()
    if row is not None:
        recorder.update(usable, expires_at=expires_at)
        return row, keys.rotate(row, None)
    row = APIKey(
        project=project,
        name="playground",
        is_test=is_test,
        scopes=[KeyScope.COMPLETIONS, KeyScope.GENERATIONS],
        expires_at=expires_at,
    )
    return row, keys.issue(row)
