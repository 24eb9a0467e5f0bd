"""Template filters of the admin's lists."""

import re

from django import template
from django.utils.safestring import SafeString, mark_safe

register = template.Library()
# The class that names a cell's column, and the theme's twenty others, which are the same in every cell.
_CLASSES = re.compile(r'(<t[dh] class="(?:field-\w+|action-checkbox))( nowrap)? [^"]*"')
_SPACE = re.compile(r"\s+")


@register.filter
def cell(html: SafeString) -> SafeString:
    """Return a cell with one class in place of the theme's; `admin.css` has its rules.

    They were more than half of a list's bytes.
    """
    short = _SPACE.sub(" ", _CLASSES.sub(r'\1\2 cell"', html, count=1))
    return mark_safe(short)  # noqa: S308  it was safe, and only its classes are fewer
