"""What a browser sends of a page's form: all its fields, as they were when the page was opened."""

from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any

from django.test import Client


class _Forms(HTMLParser):
    """Reads the fields of each form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[dict[str, list[str]]] = []
        self._select = ""
        self._textarea = ""

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        name, value = found.get("name") or "", found.get("value")
        if tag == "form":
            self.forms.append({})
        elif tag == "input" and name and self._is_sent(found):
            self._add(name, "on" if value is None and found.get("type") == "checkbox" else value or "")
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and "selected" in found:
            self._add(self._select, value or "")
        elif tag == "textarea" and name:
            self._textarea = name
            self._add(name, "")

    def handle_data(self, data: str) -> None:
        if self._textarea:
            # The first line break of a text area is no part of its value.
            self.forms[-1][self._textarea] = [data.removeprefix("\n")]

    def handle_endtag(self, tag: str) -> None:
        self._select = "" if tag == "select" else self._select
        self._textarea = "" if tag == "textarea" else self._textarea

    def _is_sent(self, found: dict[str, str | None]) -> bool:
        kind = found.get("type")
        return kind not in {"submit", "button"} and (kind not in {"checkbox", "radio"} or "checked" in found)

    def _add(self, name: str, value: str) -> None:
        if self.forms:
            self.forms[-1].setdefault(name, []).append(value)


def opened(client: Client, path: str, field: str) -> dict[str, Any]:
    """Return all fields of the page's first form that has a field of this name."""
    response = client.get(path)
    assert response.status_code == 200, response.status_code
    reader = _Forms()
    reader.feed(response.content.decode())
    return next(form for form in reader.forms if field in form)
