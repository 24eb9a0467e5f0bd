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
    made = json.loads(
        installation.manage("createkey", "--organization", "Mallory", "--project", change, "--json").stdout
    )
    with Client(installation.url, made["key"]).asking("steady", stream=True) as exchange:
        data = exchange.data()
        next(data)
        script = FIND.format(public=made["key"].split("_")[2]) + CHANGES[change]
        assert installation.manage("shell", "--no-imports", "-c", script).returncode == 0
        began = time.monotonic()
        *_, error, done = list(data)
    assert time.monotonic() - began < 5
    assert done == "[DONE]"
    assert json.loads(error)["error"]["code"] == "invalid_api_key"
