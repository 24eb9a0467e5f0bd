"""The formats of the log: one line for people, or one JSON object for programs.

A record with fields, `extra={"fields": {...}}`, shows them as `name=value` or as members of the object.
"""

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.http import HttpRequest


def fields(**values: Any) -> Mapping[str, Any]:
    """Return `extra` for a record with these fields; None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def route_of(request: HttpRequest) -> str:
    """Return the pattern of the request's URL."""
    return "/" + request.resolver_match.route if request.resolver_match else "no route"


class ConsoleFormatter(logging.Formatter):
    """One line: time with its zone, level, logger, message, fields."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(name)s: %(message)s%(fields_text)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time_of(record)

    def format(self, record: logging.LogRecord) -> str:
        found: Mapping[str, Any] = getattr(record, "fields", {})
        record.fields_text = "".join(f" {name}={value}" for name, value in found.items())
        return super().format(record)


class JSONFormatter(logging.Formatter):
    """One JSON object without line breaks; a traceback is its member `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
