"""The pages that people meet beside the admin: the front page, /docs, the sandbox's manual."""

from csp.decorators import csp_replace
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.decorators import method_decorator
from drf_spectacular.views import SpectacularSwaggerSplitView

from chatapi.api.reading import only_read

# Only the admin's theme needs more than scripts from files of our own.
own_scripts_only = csp_replace({"script-src": ["'self'"]})


@only_read
@own_scripts_only
def front_page(request: HttpRequest) -> HttpResponse:
    """What this is and where to go; takes its address from the request, so that the example can be pasted."""
    return render(request, "chatapi/front.html", {"origin": request.build_absolute_uri("/").rstrip("/")})


@only_read
def sandbox_manual(request: HttpRequest) -> HttpResponse:
    """docs/sandbox.md as it is."""
    path = settings.BASE_DIR / "docs" / "sandbox.md"
    if not path.exists():
        raise Http404
    return HttpResponse(path.read_bytes(), content_type="text/plain; charset=utf-8")


@method_decorator([only_read, own_scripts_only], name="dispatch")
class Docs(SpectacularSwaggerSplitView):
    """Swagger UI over /openapi.json, all from this server."""

    url_name = "openapi"
    title = "chatapi: API reference"
