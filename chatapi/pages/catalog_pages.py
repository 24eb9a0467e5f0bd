"""The admin's pages that exchange the catalog as a file: import with a preview, and export."""

from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from chatapi.catalog import file, loading, writing
from chatapi.catalog.file import CatalogError
from chatapi.catalog.loading import CatalogBusy, CatalogChanged, Plan

# About 250 models. Applying them, with an audit entry each, blocks other writes; `loadcatalog` takes more.
MAX_FILE_BYTES = 64 * 1024
_TOO_LARGE = f"The file is larger than {MAX_FILE_BYTES // 1024} KiB. Load it with manage.py loadcatalog."
IMPORT_PERMISSIONS = (
    "chatapi.add_servedmodel",
    "chatapi.change_servedmodel",
    "chatapi.add_deployment",
    "chatapi.change_deployment",
    "usage.add_price",
)
EXPORT_PERMISSIONS = ("chatapi.view_servedmodel", "chatapi.view_deployment", "usage.view_price")


@dataclass(frozen=True, slots=True)
class Upload:
    """A catalog file, as the first form or the preview's form sent it."""

    name: str
    text: str
    deactivate_missing: bool
    expected_digest: str
    """The digest of the plan that was previewed; empty before the preview."""


@require_safe
def export(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perms(EXPORT_PERMISSIONS):
        raise PermissionDenied
    try:
        text = writing.write()
    except CatalogError as error:
        messages.error(request, str(error))
        return redirect("admin:chatapi_servedmodel_changelist")
    name = f"catalog-{timezone.now():%Y-%m-%d}.toml"
    return HttpResponse(
        text,
        content_type="application/toml",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


@require_http_methods(["GET", "HEAD", "POST"])
def import_page(request: HttpRequest) -> HttpResponse:
    """Show the form, preview what its file would change, and apply it."""
    if not request.user.has_perms(IMPORT_PERMISSIONS):
        raise PermissionDenied
    if request.method != "POST":
        return _page(request, {})
    try:
        upload = _upload(request)
        catalog = file.parse(upload.text)
        if not upload.expected_digest:
            return _preview(
                request, upload, loading.plan(catalog, deactivate_missing=upload.deactivate_missing)
            )
        # The digest makes sure that the plan is the one that the person has seen.
        plan = loading.load(
            catalog, deactivate_missing=upload.deactivate_missing, expected_digest=upload.expected_digest
        )
    except CatalogChanged:
        plan = loading.plan(catalog, deactivate_missing=upload.deactivate_missing)
        return _preview(
            request,
            upload,
            plan,
            notice="The catalog has changed since the preview. The file would now change this.",
        )
    except (ValueError, CatalogError) as error:
        return _page(request, {"mistake": str(error)}, status=503 if isinstance(error, CatalogBusy) else 400)
    messages.success(request, _summary(plan))
    return redirect("admin:chatapi_servedmodel_changelist")


def _upload(request: HttpRequest) -> Upload:
    """Return the upload; raises `ValueError` with a message for the person."""
    sent = request.FILES.get("file")
    text = request.POST.get("text", "") if sent is None else _text(sent)
    # Forms send line ends as \r\n, but the preview's form must send the same text as the file.
    text = text.replace("\r\n", "\n")
    if not text.strip():
        raise ValueError("Choose a catalog file." if sent is None else "The file is empty.")
    # Checked here, too, for the preview's form, which sends the text itself.
    if len(text.encode()) > MAX_FILE_BYTES:
        raise ValueError(_TOO_LARGE)
    name = (sent.name if sent else request.POST.get("name")) or "a file"
    # A file that is chosen again has no preview yet.
    digest = "" if sent else request.POST.get("expected", "")
    return Upload(name[:100], text, request.POST.get("deactivate_missing") == "on", digest)


def _text(sent: "UploadedFile[bytes]") -> str:
    if (sent.size or 0) > MAX_FILE_BYTES:
        raise ValueError(_TOO_LARGE)
    try:
        # Editors on Windows begin a file with a byte order mark.
        return bytes(sent.read()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"The file is not UTF-8 text: byte {error.start} is not.") from error


def _preview(request: HttpRequest, upload: Upload, plan: Plan, notice: str = "") -> HttpResponse:
    changing = [model for model in plan.models if model.verb != "unchanged"]
    context = {
        "upload": upload,
        "plan": plan,
        "notice": notice,
        "changing": changing,
        "unchanged": [model.id for model in plan.models if model.verb == "unchanged"],
        "does_something": bool(changing) or (plan.deactivates_missing and bool(plan.missing)),
    }
    return _page(request, context)


def _page(request: HttpRequest, context: dict[str, Any], status: int = 200) -> HttpResponse:
    always = {"title": "Import a catalog", "max_kib": MAX_FILE_BYTES // 1024}
    return TemplateResponse(
        request, "chatapi/import.html", admin.site.each_context(request) | always | context, status=status
    )


def _summary(plan: Plan) -> str:
    verbs = [model.verb for model in plan.models]
    counts = [(verbs.count(verb), verb) for verb in ("created", "changed", "unchanged")]
    if plan.deactivates_missing:
        counts.append((len(plan.missing), "deactivated"))
    text = ", ".join(f"{count} {verb}" for count, verb in counts if count)
    return f"Models: {text}. It takes effect within a second."
