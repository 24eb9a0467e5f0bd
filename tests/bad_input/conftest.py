"""One installation for all bad input, and the promise that what it refuses leaves no trace.

`client` sends what is answered; `suspect` sends what must be refused, with a key of its own that has no
generation in the end.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chatapi.wire.protocols.chat.request import parse as parse_chat
from tests.bad_input.bodies import SMALL_REQUEST, chat
from tests.bad_input.raw_http import RawClient
from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for
from usage.pricing import Price, from_usd, upper_bound

MODELS: dict[str, dict[str, Any]] = {
    "five": {},
    "steady": {"tokens": 1_000, "rate": 40},
    "tells-no-usage": {"no_usage": True},
    "five-embeddings": {},
}

ACCOUNTS = """
import json
from accounts.keys import create_key, get_or_create_project
from chatapi.models import Deployment, ServedModel
from usage.books import prices
from usage.models import BudgetLimit
from usage.pricing import FREE

model = ServedModel.objects.create(id="unpriced")
Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
model = ServedModel.objects.create(id="unpriced-embeddings", kind="embeddings")
Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
model = ServedModel.objects.create(id="free")
Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
prices.change(model.id, FREE)

def make(name, organization="Tests", limit=None):
    row, secret = create_key(get_or_create_project(organization, name), name=name)
    if limit is not None:
        BudgetLimit.objects.create(scope="key", scope_id=row.pk, period="day", limit_nanodollars=limit)
    return secret

print(json.dumps({
    "suspect": make("suspect"),
    "stranger": make("stranger", "Strangers"),
    "penniless": make("penniless", limit=0),
    "one nanodollar short": make("short", limit=HELD_NANODOLLARS - 1),
    "exactly enough": make("enough", limit=HELD_NANODOLLARS),
}))
"""

CENSUS = """
from accounts.models import APIKey
from usage.models import Generation
print(Generation.objects.filter(api_key_id=APIKey.objects.get(name="suspect").pk).count())
"""


def held_nanodollars() -> int:
    """Return the amount that one small request on `five` holds."""
    price = Price(*map(from_usd, ("1", "0.5", "2")))
    return upper_bound(parse_chat(chat(**SMALL_REQUEST)).prompt_bytes, SMALL_REQUEST["max_tokens"], price)


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start Valkey, web, worker and upstream; at the end the books are right, `suspect` has no generation,
    and no internal error was logged.
    """
    with Installation(tmp_path_factory.mktemp("bad_input")) as installation:
        installation.start(MODELS)
        made = _shell(installation, f"HELD_NANODOLLARS = {held_nanodollars()}\n{ACCOUNTS}")
        installation.keys.update(made)
        wait_for(lambda: _serves_everything(installation), "the models that were added")
        yield installation
        installation.verify()
        assert _shell(installation, CENSUS) == 0
        for complaint in ("a request failed", "The application failed", "could not be checked"):
            assert complaint not in installation.log("web")


@pytest.fixture
def client(installation: Installation) -> Client:
    """Return a client with a key that may do everything."""
    return Client(installation.url, installation.keys["live"])


@pytest.fixture
def suspect(installation: Installation) -> Client:
    """Return a client with a good key whose every request must be refused."""
    return Client(installation.url, installation.keys["suspect"])


@pytest.fixture
def raw(installation: Installation) -> Iterator[RawClient]:
    """Open a raw connection for the suspect."""
    with RawClient(installation.port, installation.keys["suspect"]) as client:
        yield client


def _shell(installation: Installation, script: str) -> Any:
    return json.loads(installation.shell(script))


def _serves_everything(installation: Installation) -> bool:
    status, _ = installation.get("/v1/models/free", installation.keys["live"])
    return status == 200
