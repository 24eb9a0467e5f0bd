"""The prefixes of the API's routes, and a check of the error envelope that they share."""

import json
import re
from typing import Any

from chatapi.wire.dialects import DIALECTS

PREFIXES = ["", *(f"/{dialect}" for dialect in DIALECTS)]
RANDOM_ID = "chatcmpl-0192f0c57e7a7cc398c4dc0c0c07398f"


def error(response: Any, status: int) -> dict[str, Any]:
    """Return the error of an envelope, after checks that hold for every envelope."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", response.headers["x-request-id"])
    body: dict[str, dict[str, Any]] = json.loads(response.content)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]
