"""A worker divides requests among deployments by their weights, and by what is in flight there."""

from contextlib import ExitStack
from itertools import product

import pytest

from tests.chatapi.http_client import Client, Exchange
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(60)]

WEIGHTS = {"one-by-one": 9, "weighed": 3, "emptied": 1}
"""The models, with the weight of the first deployment; that of the second is 1."""
MODEL = """
[[models]]
id = "{name}"
context_window = 8192
max_output_tokens = 1024
price = {{ input_per_mtok = "1", output_per_mtok = "2" }}
deployments = [
    {{ name = "one", engine = "openai_compatible", upstream_model = "{name}-one", weight = {weight}, \
base_url = "{url}/v1" }},
    {{ name = "two", engine = "openai_compatible", upstream_model = "{name}-two", base_url = "{url}/v1" }},
]
"""


@pytest.fixture(scope="module", autouse=True)
def models(installation: Installation) -> None:
    """Serve the models; the streams of all but the first are long."""
    for name, deployment in product(WEIGHTS, ("one", "two")):
        long = {} if name == "one-by-one" else {"tokens": 1000, "rate": 20}
        installation.script(f"{name}-{deployment}", **long)
    url = installation.upstream_url
    installation.load_catalog(
        "".join(MODEL.format(name=name, weight=weight, url=url) for name, weight in WEIGHTS.items())
    )


def test_requests_that_come_one_by_one_are_divided_by_weight(
    installation: Installation, client: Client
) -> None:
    for _ in range(60):
        assert client.complete("one-by-one").status == 200
    first, second = shares(installation, "one-by-one")
    assert first + second == 60
    # 54 expected. This fails once in 10^6 runs, and equal shares would pass once in 700.
    assert first >= 42


def test_streams_in_flight_are_divided_by_weight(installation: Installation, client: Client) -> None:
    with ExitStack() as streams:
        for number in range(8):
            open_stream(client, "weighed", number, streams)
        assert shares(installation, "weighed") == (6, 2)


def test_the_deployment_with_the_fewest_in_flight_gets_the_next_requests(
    installation: Installation, client: Client
) -> None:
    with ExitStack() as streams:
        opened = [open_stream(client, "emptied", number, streams) for number in range(6)]
        assert shares(installation, "emptied") == (3, 3)
        for call in installation.calls("emptied-two"):
            opened[int(call["body"]["messages"][0]["content"])].leave()
        wait_for(
            lambda: all(call["closed_at"] for call in installation.calls("emptied-two")),
            "the ends of its streams",
        )
        for number in range(6, 9):
            open_stream(client, "emptied", number, streams)
        assert shares(installation, "emptied") == (3, 6)


def open_stream(client: Client, model: str, number: int, streams: ExitStack) -> Exchange:
    """Open a stream whose prompt is the number, and wait for its first text."""
    messages = [{"role": "user", "content": str(number)}]
    exchange = streams.enter_context(client.asking(model, stream=True, messages=messages))
    assert next(exchange.texts())
    return exchange


def shares(installation: Installation, model: str) -> tuple[int, int]:
    """Return how many requests each deployment has got."""
    return len(installation.calls(f"{model}-one")), len(installation.calls(f"{model}-two"))
