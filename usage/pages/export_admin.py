"""Exports of the admin's lists: the rows that a list shows with its filters and search, as a file."""

from typing import Any, ClassVar

from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, path
from django.utils import timezone

from usage.pages import table_exports
from usage.pages.table_exports import Record, Table


class ExportedList:
    """Mixed into a ModelAdmin, before it: its list can be downloaded by whoever may see it."""

    list_before_template = "usage/list_export.html"
    export_name: ClassVar[str]
    export_columns: ClassVar[tuple[str, ...]]
    export_select_related: ClassVar[tuple[str, ...]] = ()
    """What `export_record` needs beside the row; a list's page may show more."""

    class Media:
        css = {"all": ["usage/operator.css"]}
        js = ["usage/export.js"]

    def export_record(self, row: Any) -> Record:
        """The row's values by column."""
        raise NotImplementedError

    def export(self, request: HttpRequest, form: str) -> HttpResponseBase:
        """The rows of the list that the address asks for, newest first."""
        page: Any = self
        if not page.has_view_permission(request):
            raise PermissionDenied
        try:
            rows = page.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            return HttpResponse(
                "These filters are none of this list.\n", status=400, content_type="text/plain"
            )
        rows = (
            rows.select_related(None).select_related(*self.export_select_related)
            if self.export_select_related
            else rows
        )
        pages = ([self.export_record(row) for row in window] for window in table_exports.windows(rows))
        name = f"{self.export_name}_to_{timezone.now():%Y-%m-%d}"
        return table_exports.response(request, Table(name, self.export_columns, pages), form)

    def get_urls(self) -> list[URLPattern]:
        """Before the addresses of rows, which could be called so."""
        page: Any = self
        view = page.admin_site.admin_view(self.export)
        name = f"{page.opts.app_label}_{page.opts.model_name}_export"
        return [path("export.<str:form>", view, name=name), *super().get_urls()]  # type: ignore[misc]
