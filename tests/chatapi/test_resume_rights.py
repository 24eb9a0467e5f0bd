"""A follower of another key's stream may read while their own key is good: theirs ends, the other's
goes on.
"""

import json
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

CHANGES = {
    "revoked": ("key.revoked_at = timezone.now()", "invalid_api_key"),
    "narrowed": ("key.scopes = ['completions']", "permission_denied"),
}
FIND = (
    "from django.utils import timezone; from accounts.models import APIKey; "
    "key = APIKey.objects.get(public={public!r}); "
)


def shown(response: HTTPResponse) -> Iterator[str]:
    """Yield the data of each event as it comes."""
    while line := response.readline():
        if line.startswith(b"data: "):
            yield line[6:].decode().strip()


@pytest.mark.parametrize("change", CHANGES)
def test_a_follower_gets_nothing_more_when_its_key_may_not_look(
    client: Client, installation: Installation, change: str
) -> None:
    key = installation.create_key("--organization", "Tests", "--project", "default")
    colleague = Client(installation.url, key)
    with client.asking("steady", stream=True) as own:
        generation_id = own.response.headers["x-generation-id"]
        with colleague.exchange("GET", f"/v1/generations/{generation_id}/stream", None, {}) as followed:
            data = shown(followed.response)
            next(data)
            act, code = CHANGES[change]
            script = FIND.format(public=key.split("_")[2]) + act + "; key.save()"
            installation.shell(script)
            *_, error, end = list(data)
        assert (json.loads(error)["error"]["code"], end) == (code, "[DONE]")
    assert installation.receipt(generation_id)["outcome"] == "client_cancelled", (
        "it went on until its own client left"
    )
