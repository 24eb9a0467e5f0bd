"""Template filters of the admin's lists."""

import re
from collections.abc import Sequence
from typing import Any

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

Header = dict[str, Any]
register = template.Library()
# The class that names a cell's column, and the theme's twenty others, which are equal in all cells.
_CLASSES = re.compile(r'(<t[dh] class="(?:field-\w+|action-checkbox))( nowrap)? [^"]*"')
_NUMBER = " num"
_NO_NAME = 'data-label="Select record"'
_LABEL = re.compile(r'(?<= data-label=")[a-z]')
_SPACE = re.compile(r"\s+")


@register.filter
def with_numbers(headers: Sequence[Header], changelist: Any) -> list[Header]:
    """Return the headers of a list, with the class `num` where it has a column of numbers."""
    numbers = changelist.model_admin.number_columns
    return [
        header | {"class_attrib": header["class_attrib"] + _NUMBER} if name in numbers else header
        for name, header in zip(changelist.list_display, headers, strict=True)
    ]


@register.filter
def cells(row: Sequence[SafeString], headers: Sequence[Header]) -> SafeString:
    """Return the cells of a row with few classes in place of the theme's; `admin.css` has their rules.

    The theme's classes were more than half of a list's bytes. The label of a row's first cell, which phones
    show, becomes its column's name: the theme writes "Select record" there, also where there is no check box.
    """
    shown = []
    for html, header in zip(row, headers, strict=True):
        number = _NUMBER if header["class_attrib"].endswith(_NUMBER) else ""
        short = _SPACE.sub(" ", _CLASSES.sub(rf'\1\2{number} cell"', html, count=1))
        if "action-checkbox" not in short:
            short = short.replace(_NO_NAME, f'data-label="{escape(header["text"])}"', 1)
        shown.append(_LABEL.sub(lambda label: label[0].upper(), short, count=1))
    return mark_safe("".join(shown))  # noqa: S308  they were safe, and only their classes are fewer
