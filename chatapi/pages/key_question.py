"""The question before a change of an API key that takes effect at once."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.decorators import action
from unfold.enums import ActionVariant


def asked_first(
    title: str, explanation: str, submit: str, *, is_final: bool = False, **settings: Any
) -> Callable[[Callable[..., HttpResponse]], Any]:
    """Return a decorator that makes a method of the keys' admin a button which asks for confirmation, in a
    dialog or on a page.

    `is_final`: the change can't be undone. `settings` are the arguments of the theme's `action`.
    """

    def decorate(method: Callable[..., HttpResponse]) -> Any:
        @wraps(method)
        def ask(keys: Any, request: HttpRequest, object_id: str) -> HttpResponse:
            if request.method == "POST":
                return method(keys, request, object_id)
            question = {"explanation": explanation, "submit": submit, "is_final": is_final}
            context = keys.page_context(request, keys.get_object(request, object_id), title) | question
            return TemplateResponse(request, "chatapi/key_question.html", context)

        variant = ActionVariant.DANGER if is_final else ActionVariant.DEFAULT
        asked: Any = action(permissions=["key"], variant=variant, **settings)(ask)
        asked.dialog = True  # the theme's link shows the page's part "dialog" in a dialog
        return asked

    return decorate
