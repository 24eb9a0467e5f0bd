"""A statement as PDF, on A4. The same statement always gives the same bytes.

The standard fonts have the characters of names: organizations and projects have ASCII names.
"""

import io
from collections.abc import Iterator
from functools import partial
from typing import Any

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.lib.utils import simpleSplit
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    CondPageBreak,
    Flowable,
    Paragraph,
    SimpleDocTemplate,
    Spacer,
    Table,
    TableStyle,
)

from usage.statements import sections
from usage.statements.document import StatementDocument
from usage.statements.sections import Section

FONT, BOLD, SIZE = "Helvetica", "Helvetica-Bold", 8.5
PADDING = 2
MARGIN = 18 * mm
WIDTH = A4[0] - 2 * MARGIN
# A command of a table's style: its name, two corners of cells, and values.
_Command = tuple[str, tuple[int, int], tuple[int, int], *tuple[Any, ...]]
_FAINT, _LINE = colors.HexColor("#5b6270"), colors.HexColor("#c9cdd5")
_TITLE = ParagraphStyle("title", fontName=BOLD, fontSize=18, leading=24)
_HEADING = ParagraphStyle("heading", fontName=BOLD, fontSize=11, leading=14, spaceBefore=14, spaceAfter=4)
_TEXT = ParagraphStyle("text", fontName=FONT, fontSize=9, leading=13)
_NOTE = ParagraphStyle("note", fontName=FONT, fontSize=8, leading=11, textColor=_FAINT)
_FOOT = ParagraphStyle("foot", fontName=FONT, fontSize=7, leading=9, textColor=_FAINT)
_PREVIEW = ParagraphStyle(
    "preview", fontName=BOLD, fontSize=10, leading=14, borderWidth=1, borderColor=colors.HexColor("#b45309"),
    textColor=colors.HexColor("#92400e"), borderPadding=6, spaceBefore=8, spaceAfter=10,
)  # fmt: skip


def as_pdf(made: StatementDocument, digest: str) -> bytes:
    """Return the file; the digest of a closed statement is at the foot of each page."""
    file = io.BytesIO()
    title = f"Statement {made.id} of {made.organization}"
    pages = SimpleDocTemplate(
        file,
        pagesize=A4,
        leftMargin=MARGIN,
        rightMargin=MARGIN,
        topMargin=MARGIN,
        bottomMargin=MARGIN,
        title=title,
        author="chatapi",
        invariant=1,
    )
    foot = partial(_foot, made=made, digest=digest)
    pages.build(list(_content(made)), onFirstPage=foot, onLaterPages=foot)
    return file.getvalue()


def _content(made: StatementDocument) -> Iterator[Flowable]:
    head = sections.head(made)
    yield Paragraph(head.title, _TITLE)
    yield Paragraph(f"<b>{made.organization}</b>", _TEXT)
    yield Paragraph(head.period, _TEXT)
    if head.preview:
        yield Paragraph(f"{head.preview} The month is not closed.", _PREVIEW)
    yield Spacer(1, 8)
    yield _summary(made)
    for section in sections.sections(made):
        # A heading begins a new page where only a few rows would stand below it.
        yield CondPageBreak(35 * mm)
        yield Paragraph(section.title, _HEADING)
        yield _table(section)
        if section.left_out:
            note = f"{section.left_out:,} more rows are in the CSV and JSON files; the sums have them."
            yield Paragraph(note, _NOTE)
    yield Spacer(1, 10)
    yield Paragraph(
        "Each request's amount is rounded to a nanodollar, so a line may differ a little from tokens × "
        "price. A negative balance is owed.",
        _NOTE,
    )


def _summary(made: StatementDocument) -> Table:
    sums = sections.summary(made)
    bold = [("FONT", (0, row), (-1, row), BOLD, SIZE + 1) for row, each in enumerate(sums) if each.is_total]
    lines = [("LINEABOVE", (0, row), (-1, row), 0.5, _LINE) for row, each in enumerate(sums) if each.is_total]
    style: list[_Command] = [
        ("FONT", (0, 0), (-1, -1), FONT, SIZE + 1), ("ALIGN", (1, 0), (1, -1), "RIGHT"), *bold, *lines,
    ]  # fmt: skip
    rows = [[each.name, each.amount] for each in sums]
    return Table(rows, [WIDTH * 0.32, WIDTH * 0.26], style=TableStyle(style), hAlign="LEFT")


def _table(section: Section) -> Table:
    widths = _widths(section)
    texts = sum(not column.is_number for column in section.columns)
    rows: list[list[str]] = [[column.name for column in section.columns]]
    style: list[_Command] = [
        ("FONT", (0, 0), (-1, -1), FONT, SIZE),
        ("TEXTCOLOR", (0, 0), (-1, 0), _FAINT),
        ("ALIGN", (texts, 0), (-1, -1), "RIGHT"),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LINEBELOW", (0, 0), (-1, -1), 0.25, _LINE),
        *((f"{side}PADDING", (0, 0), (-1, -1), PADDING) for side in ("LEFT", "RIGHT", "TOP", "BOTTOM")),
    ]
    for group in section.groups:
        if group.name:
            style.append(("FONT", (0, len(rows)), (-1, len(rows)), BOLD, SIZE))
            rows.append([group.name, *[""] * (len(widths) - 2), group.total])
        rows += [[*map(_wrapped, row[:texts], widths), *row[texts:]] for row in group.rows]
    return Table(rows, widths, repeatRows=1, style=TableStyle(style), hAlign="LEFT")


def _widths(section: Section) -> list[float]:
    """Return the columns' widths: numbers get their part or what their longest one needs, texts the rest."""
    parts = WIDTH / sum(column.width for column in section.columns)
    widths = [column.width * parts for column in section.columns]
    for at, column in enumerate(section.columns):
        if column.is_number:
            cells = [column.name, *(row[at] for group in section.groups for row in group.rows)]
            longest = max(stringWidth(cell, FONT, SIZE) for cell in cells)
            widths[at] = max(widths[at], longest + 4 * PADDING)
    numbers = sum(width for width, column in zip(widths, section.columns, strict=True) if column.is_number)
    texts = sum(column.width for column in section.columns if not column.is_number)
    return [
        width if column.is_number else column.width / texts * (WIDTH - numbers)
        for width, column in zip(widths, section.columns, strict=True)
    ]


def _wrapped(text: str, width: float) -> str:
    """Return the text with line breaks so that it fits, at spaces where there are some."""
    lines, most = [], max(int(width / (SIZE * 0.56)), 1)
    for line in simpleSplit(text, FONT, SIZE, width - 2 * PADDING):
        fits = stringWidth(line, FONT, SIZE) <= width - 2 * PADDING
        lines += [line] if fits else [line[at : at + most] for at in range(0, len(line), most)]
    return "\n".join(lines)


def _foot(canvas: Canvas, pages: SimpleDocTemplate, *, made: StatementDocument, digest: str) -> None:
    text = "Preview: the month is not closed" if made.is_preview else f"SHA-256 of its JSON: {digest}"
    # A paragraph, because a long name needs more than one line.
    foot = Paragraph(f"{made.organization}, {made.id}<br/>{text}", _FOOT)
    _, height = foot.wrapOn(canvas, WIDTH - 20 * mm, MARGIN)
    foot.drawOn(canvas, MARGIN, 13 * mm - height)
    canvas.saveState()
    canvas.setFont(FONT, _FOOT.fontSize)
    canvas.setFillColor(_FAINT)
    canvas.drawRightString(A4[0] - MARGIN, 13 * mm - _FOOT.fontSize, f"Page {canvas.getPageNumber()}")
    canvas.restoreState()
