"""What a key sends to the management API, and what it is answered."""

import json
from typing import Any

from tests.cast import Person

HERE = "/v1/organization"


def said(person: Person, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    response = person.send(method, path, body)
    assert response.status_code == status, response.content
    return json.loads(response.content)


def refused(person: Person, method: str, path: str, body: Any = None, status: int = 400) -> tuple[Any, Any]:
    """The parameter and the code of a refusal."""
    error = said(person, method, path, body, status)["error"]
    return error["param"], error["code"]
