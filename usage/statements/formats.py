"""The formats of a statement: JSON, CSV and PDF."""

from typing import NamedTuple

from usage.statements.as_csv import as_csv
from usage.statements.reading import Reading

# By the ending of the file's name.
MEDIA_TYPES = {"json": "application/json", "csv": "text/csv", "pdf": "application/pdf"}


class File(NamedTuple):
    """A statement in one format."""

    name: str
    content_type: str
    content: bytes


def file_of(reading: Reading, file_format: str) -> File:
    """Return the statement in one of `MEDIA_TYPES`."""
    made = reading.document
    content_type = MEDIA_TYPES[file_format]
    match file_format:
        case "csv":
            content, content_type = as_csv(made).encode(), "text/csv; charset=utf-8"
        case "pdf":
            # Here, because it takes 0.3 s and 19 MB, which most processes never need.
            from usage.statements.as_pdf import as_pdf  # noqa: PLC0415

            content = as_pdf(made, reading.row.digest if reading.row else "")
        case "json":
            content = reading.content.encode()
        case _:
            raise ValueError(f"nothing writes {file_format}")
    suffix = "-preview" if made.is_preview else ""
    return File(f"statement-{made.id}{suffix}.{file_format}", content_type, content)
