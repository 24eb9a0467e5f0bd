"""The pages for people outside the admin and the console: the front page, /docs, the sandbox's manual.

They are exempt from the check for CSRF tokens, so that another method is a 405 and not a 403 for want of one.
"""

from csp.decorators import csp_replace
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from drf_spectacular.views import SpectacularSwaggerSplitView

from chatapi.snippets import base_url

# The admin's theme needs more than scripts from our files.
own_scripts_only = csp_replace({"script-src": ["'self'"]})


@csrf_exempt
@require_safe
@own_scripts_only
def front_page(request: HttpRequest) -> HttpResponse:
    """Introduce the service, with an example that has the URL of this request and can be pasted."""
    return render(request, "chatapi/front.html", {"origin": base_url(request)})


@csrf_exempt
@require_safe
def sandbox_manual(request: HttpRequest) -> HttpResponse:
    """Serve docs/sandbox.md as it is, or a 404 where it was not installed."""
    path = settings.BASE_DIR / "docs" / "sandbox.md"
    if not path.exists():
        raise Http404
    return HttpResponse(path.read_bytes(), content_type="text/plain; charset=utf-8")


@method_decorator([csrf_exempt, require_safe, own_scripts_only], name="dispatch")
class Docs(SpectacularSwaggerSplitView):
    """Swagger UI for /openapi.json, with all files from this server."""

    url_name = "openapi"
    title = "chatapi: API reference"
