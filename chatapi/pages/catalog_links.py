"""Links inside the theme's tables, which look like text there unless they are told otherwise."""

from django.utils.html import format_html
from django.utils.safestring import SafeString


def link(url: str, text: str, label: str = "") -> SafeString:
    """A link in the theme's colour; `label` is what it says where nobody sees the row around it."""
    return format_html(
        '<a class="font-medium text-primary-600 dark:text-primary-500" href="{}" aria-label="{}">{}</a>',
        url,
        label or text,
        text,
    )
