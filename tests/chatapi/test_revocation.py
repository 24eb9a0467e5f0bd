"""A key that is revoked while its stream runs: the stream ends with an error within 5 s, and is charged."""

import json
import time

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

CHANGES = {
    "revoked": "key.revoked_at = timezone.now(); key.save()",
    "disabled": "key.is_active = False; key.save()",
    "expired": "key.expires_at = timezone.now(); key.save()",
    "project closed": "key.project.is_active = False; key.project.save()",
}
FIND = (
    "from django.utils import timezone; from accounts.models import APIKey; "
    "key = APIKey.objects.get(public={public!r}); "
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_running_stream_ends_when_its_key_is(installation: Installation, change: str) -> None:
    key = installation.create_key("--organization", "Mallory", "--project", change)
    with Client(installation.url, key).asking("steady", stream=True) as exchange:
        data = exchange.data()
        next(data)
        installation.shell(FIND.format(public=key.split("_")[2]) + CHANGES[change])
        began = time.monotonic()
        *_, error, done = list(data)
    assert time.monotonic() - began < 5
    assert done == "[DONE]"
    assert json.loads(error)["error"]["code"] == "invalid_api_key"
