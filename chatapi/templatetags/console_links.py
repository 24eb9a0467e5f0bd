"""A template tag for links between the pages of an organization in the console."""

from typing import Any

from django import template

register = template.Library()


@register.simple_tag(takes_context=True)
def console_url(context: template.Context, name: str, *args: object, **query: Any) -> str:
    """Return the URL of a page of the organization, as `Console.url` does: at the project of a limit."""
    url: str = context["console"].url(name, *args, **query)
    return url
