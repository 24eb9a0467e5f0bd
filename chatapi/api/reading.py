"""What a route that only reads has in common with the others: GET and HEAD, and 405 with `Allow` for any
other method.
"""

from collections.abc import Callable
from typing import Any

from django.http import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

View = Callable[..., HttpResponseBase]


def only_read(view: View) -> View:
    """Refuse other methods. A form's token is not asked for: its lack would be a 403, where the method is
    what is wrong.
    """
    read: Any = csrf_exempt(require_safe(view))
    return read  # type: ignore[no-any-return]
