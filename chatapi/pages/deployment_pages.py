"""The admin's page that tests a deployment: what would be called, and on demand what came of it."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_http_methods

from accounts.audit import recorder
from chatapi.models import Deployment
from chatapi.pages import deployment_probe
from chatapi.pages.deployment_probe import TIMEOUT_S, Finding

_HINTS = {
    "upstream_unreachable": "Does it run, and can this server reach its base URL?",
    "upstream_disconnected": "Does its base URL lead to an OpenAI-compatible server, and not to something else that listens there?",
    "upstream_authentication": "Does the variable that the deployment names hold a key of this upstream's?",
    "upstream_credentials_missing": "Set the variable that the deployment names, to a key in one line, where web and worker start.",
    "upstream_model_not_found": "Give the deployment the name that the upstream has for the model.",
    "upstream_invalid_response": "Does its base URL end where /chat/completions follows, such as in /v1?",
    "upstream_timeout": f"A model that is loaded first may take longer than its timeouts, or than this test's {TIMEOUT_S:.0f} s.",
    "upstream_rate_limited": "It works, but has no room now.",
}


@require_http_methods(["GET", "HEAD", "POST"])
def test_page(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """What a test would call; a POST makes the call. Whoever may change deployments may test them."""
    if not request.user.has_perm("chatapi.change_deployment"):
        raise PermissionDenied
    rows = admin.site.get_model_admin(Deployment).get_queryset(request).select_related("model")
    row = rows.filter(pk=deployment_id).first()
    if row is None:
        raise Http404("There is no such deployment.")
    mistakes = _mistakes(row)
    finding = _tested(row) if request.method == "POST" and not mistakes else None
    return TemplateResponse(
        request,
        "chatapi/deployment_test.html",
        admin.site.each_context(request) | _context(row, mistakes, finding),
    )


def _mistakes(row: Deployment) -> list[str]:
    """What is wrong with a row that was never checked."""
    try:
        row.full_clean()
    except ValidationError as error:
        return [f"{name.replace('_', ' ')}: {' '.join(texts)}" for name, texts in error.message_dict.items()]
    return []


def _tested(row: Deployment) -> Finding:
    """What came of a call, which is in the audit log."""
    if not connection.in_atomic_block:
        # It waits for an upstream: others need the connection meanwhile.
        connection.close()
    finding = deployment_probe.ask(row)
    recorder.record("tested", row, {"outcome": [None, finding.outcome]})
    return finding


def _context(row: Deployment, mistakes: list[str], finding: Finding | None) -> dict[str, Any]:
    return {
        "title": "Test a deployment",
        "row": row,
        "mistakes": mistakes,
        "finding": finding,
        "timeout_s": f"{TIMEOUT_S:.0f}",
        # Whether it is set is all that is told of a key.
        "has_key": bool(deployment_probe.key_of(row)),
        "hint": _HINTS.get(finding.error) if finding else None,
    }
