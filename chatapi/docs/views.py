"""The front page and the views of /docs. They need no key and no session.

They are exempt from the check for CSRF tokens, so that other methods get 405, not 403.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import escape
from django.utils.safestring import mark_safe
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from chatapi.docs import guides, reference
from chatapi.snippets import base_url

View = Callable[..., HttpResponse]
Page = TypeVar("Page")


def _public(view: View) -> View:
    return csrf_exempt(require_safe(view))


@_public
def front_page(request: HttpRequest) -> HttpResponse:
    """Introduce the service, with an example that has the URL of this request and can be pasted."""
    return render(request, "chatapi/front.html", {"origin": base_url(request)})


@_public
def index(request: HttpRequest) -> HttpResponse:
    """Introduce the guides and the reference."""
    listed = [
        (slug, title, mark_safe(guides.descriptions()[slug]))  # noqa: S308 - docs/*.md are ours
        for slug, title in guides.menu().items()
    ]
    return _page(request, "index", "Documentation", {"base_url": base_url(request), "guides": listed})


@_public
def guide(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a guide, with examples for this base URL."""
    found = _found(guides.guide(slug))
    html = mark_safe(found.html_for(escape(base_url(request))))  # noqa: S308 - docs/*.md are ours
    return _page(request, "guide", found.title, {"html": html, "guide": found})


@_public
def source(request: HttpRequest, slug: str) -> HttpResponse:
    """Serve a guide as Markdown, for agents and for people who prefer it."""
    if slug not in guides.menu():
        raise Http404
    text = guides.source(slug).replace(guides.WRITTEN_BASE_URL, base_url(request))
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


@_public
def operations(request: HttpRequest) -> HttpResponse:
    return _page(request, "operations", "API reference", {"groups": reference.groups()})


@_public
def operation(request: HttpRequest, operation_id: str) -> HttpResponse:
    found = _found(reference.operations().get(operation_id))
    return _page(request, "operation", found.summary, {"operation": found, "base_url": base_url(request)})


@_public
def schema(request: HttpRequest, name: str) -> HttpResponse:
    """Show one type of the reference."""
    found = _found(reference.schema(name))
    return _page(request, "schema", found.name, {"schema": found})


def _found(page: Page | None) -> Page:
    if page is None:
        raise Http404
    return page


def _page(request: HttpRequest, template: str, title: str, context: dict[str, Any]) -> HttpResponse:
    shared = {"title": title, "menu": guides.menu(), "path": request.path_info}
    return render(request, f"docs/{template}.html", shared | context)
