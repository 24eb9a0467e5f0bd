"""A tag and a filter of the console's templates: links between its pages, and fields of forms."""

from typing import Any

from django import template
from django.forms import BoundField
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def console_url(context: template.Context, name: str, *args: object, **query: Any) -> str:
    """Return the URL of a page of the organization, as `Console.url` does: at the project of a limit."""
    url: str = context["console"].url(name, *args, **query)
    return url


@register.filter
def opened_with(field: BoundField) -> SafeString | str:
    """Return hidden inputs with the value with which the page was opened, for an `OwnChangesForm`."""
    return field.as_hidden(only_initial=True) if field.field.show_hidden_initial else ""
