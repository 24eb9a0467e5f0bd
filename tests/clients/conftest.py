"""One installation for all clients: the sandbox's models, and an upstream that behaves as the model's name
says.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.chatapi.http_client import Client
from tests.installation import Installation

# What these need is heavy: `make test-clients` and `make clients` install it, and name their files, which
# collects them all the same.
collect_ignore = [
    "test_agents.py",
    "test_ai_sdk.py",
    "test_browser.py",
    "test_langchain.py",
    "test_litellm.py",
    "test_openai_python_2.py",
]

MODELS: dict[str, dict[str, Any]] = {
    "five": {},
    "local-model": {},
    "org/with-slash": {},
    "calls-tools": {"tool_calls": 2},
    "three-then-silence": {"tokens": 1000, "stall_after": 3},
    "slow-to-begin": {"ttft_ms": 2_500},
    "breaks-by-error": {
        "error_frame": 3,
        "error_type": "server_error",
        "error_message": "CUDA error at 10.0.0.7",
    },
    # at a rate, because a reset takes with it what the kernel has received and not yet handed over
    "breaks-by-reset": {"rst_after": 3, "rate": 10},
    "status-401": {"status": 401, "error_message": "Incorrect API key provided: sk-upstreamsecret"},
    "status-429": {"status": 429, "retry_after": "7"},
    "status-429-soon": {"status": 429, "retry_after": "0"},
    "status-500": {"status": 500, "error_message": "Traceback (most recent call last)"},
    "status-503": {"status": 503},
}

POOR_KEY = """
from accounts.keys import create_key, get_or_create_project
from usage.models import BudgetLimit

row, secret = create_key(get_or_create_project("Tests", "default"), name="poor")
BudgetLimit.objects.create(scope="key", scope_id=row.pk, period="day", limit_nanodollars=1)
print(secret)
"""


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start Valkey, web, worker and upstream; the books must be right at the end."""
    with Installation(tmp_path_factory.mktemp("clients")) as installation:
        installation.environment["CHATAPI_CORS_ORIGINS"] = f"http://localhost:{installation.port}"
        installation.start(MODELS)
        installation.output_of("loadcatalog", "chatapi/catalog/sandbox.toml")
        yield installation
        installation.verify()


@pytest.fixture(scope="session")
def poor_key(installation: Installation) -> str:
    """Return a key whose budget pays for nothing."""
    return installation.shell(POOR_KEY)


@pytest.fixture
def http(installation: Installation) -> Client:
    """Return a plain HTTP client, to see the bytes."""
    return Client(installation.url, installation.keys["live"])


@pytest.fixture(params=["/v1", "/openai/v1", "/llama/v1"])
def client(installation: Installation, request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    """Return OpenAI's client with each base URL that is meant for it: the default one is
    opentoken's dialect.
    """
    with OpenAI(
        base_url=installation.url + request.param, api_key=installation.keys["live"], max_retries=0
    ) as client:
        yield client


@pytest.fixture
def canonical(installation: Installation) -> Iterator[OpenAI]:
    """Return OpenAI's client under /openai/v1, where everything is as at OpenAI."""
    with OpenAI(
        base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def async_client(installation: Installation) -> AsyncIterator[AsyncOpenAI]:
    """Return OpenAI's asynchronous client under /openai/v1."""
    async with AsyncOpenAI(
        base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0
    ) as client:
        yield client
