"""Keys of upstreams in a whole installation: entered in the admin, sent by a worker that runs already, found
nowhere else.
"""

import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests import canaries
from tests.chatapi.form_session import FormSession
from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("upstream_keys"), pytest.mark.timeout(180)]

KEY, SECOND_KEY = (f"canary{uuid4().hex}" for _ in range(2))
PASSWORD = "operator-passphrase"
OPERATOR = f"""
from django.contrib.auth.models import User
User.objects.create_superuser("operator", password="{PASSWORD}")
"""
ID = "from chatapi.models import Deployment; print(Deployment.objects.get(model='{}', name='upstream').pk)"
SPARE = """
from chatapi.models import Deployment
spare = Deployment.objects.get(model="guarded", name="upstream")
spare.pk, spare.name, spare.encrypted_api_key, spare.priority = None, "spare", None, 9
spare.save()
"""


class Operator(FormSession):
    """A session of an operator in the admin."""

    def __init__(self, installation: Installation) -> None:
        super().__init__(installation.url)
        self.post("/console/sign-in?next=/admin/", username="operator", password=PASSWORD)

    def enter(self, installation: Installation, model: str, **typed: object) -> str:
        """Save the model's deployment, with what is typed."""
        usual = {
            "name": "upstream",
            "engine": "openai_compatible",
            "base_url": f"{installation.upstream_url}/v1",
            "upstream_model": model,
            "is_active": "on",
            "weight": 1,
            "priority": 0,
            "retries": 3,
            "on_disconnect": "cancel",
            "streaming": "always",
        }
        pk = installation.shell(ID.format(model))
        page = self.post(f"/admin/chatapi/deployment/{pk}/change/", **usual, **typed)
        assert "was changed successfully" in page, page
        return page


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start an installation that logs as much as possible."""
    with Installation(tmp_path_factory.mktemp("keys"), CHATAPI_LOG_LEVEL="DEBUG") as installation:
        refusal = {"status": 500, "error_message": f"Traceback: {KEY}", "error_code": KEY}
        installation.start({"changing": {}, "quiet": {}, "guarded": {}, "tells": refusal})
        installation.shell(OPERATOR)
        yield installation
        installation.verify()


@pytest.fixture(scope="module")
def operator(installation: Installation) -> Operator:
    return Operator(installation)


def sent_key(installation: Installation, model: str) -> str | None:
    """Return the header with the key of a new request, as the upstream has received it."""
    answer = Client(installation.url, installation.keys["live"]).complete(model)
    assert answer.status == 200
    header: str | None = installation.calls(model)[-1]["headers"].get("Authorization")
    return header


def test_a_running_worker_sends_what_was_entered_last(installation: Installation, operator: Operator) -> None:
    processes = {name: process.pid for name, process in installation.processes.items()}
    assert sent_key(installation, "changing") is None
    pages = [operator.enter(installation, "changing", api_key=KEY)]
    wait_for(lambda: sent_key(installation, "changing") == f"Bearer {KEY}", "the key")
    pages.append(operator.enter(installation, "changing", api_key=SECOND_KEY))
    wait_for(lambda: sent_key(installation, "changing") == f"Bearer {SECOND_KEY}", "the second key")
    pages.append(operator.enter(installation, "changing", removes_api_key="on"))
    wait_for(lambda: sent_key(installation, "changing") is None, "no key")
    assert not [page for page in pages if KEY in page or SECOND_KEY in page]
    assert {name: process.pid for name, process in installation.processes.items()} == processes


def test_an_entered_key_is_found_nowhere(installation: Installation, operator: Operator) -> None:
    for model in ("quiet", "tells"):
        operator.enter(installation, model, api_key=KEY)
    wait_for(lambda: sent_key(installation, "quiet") == f"Bearer {KEY}", "the key")
    answer = Client(installation.url, installation.keys["live"]).complete("tells")
    assert (answer.status, KEY.encode() in answer.body) == (502, False)
    assert installation.calls("tells")[-1]["headers"]["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(AssertionError, match="only one of these") as refused:  # the form is shown again
        operator.enter(installation, "quiet", api_key=KEY, api_key_env="X")
    outputs = [installation.manage(command) for command in ("exportcatalog", "doctor")]
    seen = [str(refused.value), *(done.stdout + done.stderr for done in outputs)]
    assert not [each for each in seen if KEY in each]
    with canaries.open_valkey(installation) as valkey:
        assert canaries.found([KEY.encode(), KEY.encode().hex().encode()], installation, valkey) == []


def test_under_another_secret_the_deployment_is_passed_over(
    installation: Installation, operator: Operator
) -> None:
    operator.enter(installation, "guarded", api_key=KEY)
    usual = installation.environment
    installation.end("worker", signal.SIGTERM)
    installation.environment = usual | {"CHATAPI_SECRET_KEY": "another" * 10}
    try:
        installation.start_worker()
        client = Client(installation.url, installation.keys["live"])
        assert client.complete("guarded").error["code"] == "upstream_credentials_missing"
        reported = installation.manage("doctor").stdout
        installation.shell(SPARE)
        wait_for(lambda: client.complete("guarded").status == 200, "the spare deployment")
        assert "Authorization" not in installation.calls("guarded")[-1]["headers"]
    finally:
        installation.end("worker", signal.SIGTERM)
        installation.environment = usual
        installation.start_worker()
    assert [line for line in reported.splitlines() if "guarded by upstream" in line] == [
        "WRONG    upstreams     guarded by upstream: The stored API key can't be decrypted: it was entered "
        "under another CHATAPI_SECRET_KEY."
    ]
