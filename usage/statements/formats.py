"""The formats of a statement: JSON, CSV and PDF."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from usage.statements.as_csv import as_csv
from usage.statements.reading import Reading


class File(NamedTuple):
    """A statement in one format."""

    name: str
    content_type: str
    content: bytes


class Format(NamedTuple):
    """A file format of statements: its writer, and the content type that is sent."""

    write: Callable[[Reading], bytes]
    content_type: str

    @property
    def media_type(self) -> str:
        """Return the content type without its parameters, as clients name it in `Accept`."""
        return self.content_type.partition(";")[0]


def _as_pdf(reading: Reading) -> bytes:
    # Here, because it takes 0.3 s and 19 MB, which most processes never need.
    from usage.statements.as_pdf import as_pdf  # noqa: PLC0415

    return as_pdf(reading.document, reading.row.digest if reading.row else "")


# By the ending of the file's name, in the order in which pages link to them.
FORMATS: Final[Mapping[str, Format]] = {
    "pdf": Format(_as_pdf, "application/pdf"),
    "csv": Format(lambda reading: as_csv(reading.document).encode(), "text/csv; charset=utf-8"),
    "json": Format(lambda reading: reading.content.encode(), "application/json"),
}


def file_of(reading: Reading, file_format: str) -> File:
    chosen = FORMATS[file_format]
    suffix = "-preview" if reading.document.is_preview else ""
    name = f"statement-{reading.document.id}{suffix}.{file_format}"
    return File(name, chosen.content_type, chosen.write(reading))
