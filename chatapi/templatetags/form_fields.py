"""A template filter for fields of forms that a template writes in parts."""

from django import template
from django.forms import BoundField
from django.utils.safestring import SafeString

register = template.Library()


@register.filter
def opened_with(field: BoundField) -> SafeString | str:
    """Return hidden inputs with the value with which the page was opened, for an `OwnChangesForm`."""
    return field.as_hidden(only_initial=True) if field.field.show_hidden_initial else ""
