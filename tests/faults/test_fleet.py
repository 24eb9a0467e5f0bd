"""A model whose deployments are flaky, slow, hanging, throttled and dead: clients notice none of it as
long as one is healthy, and the upstreams get at most a fifth more than the clients' requests.
"""

import json
import signal
import sys
import urllib.request
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation, free_port, wait_for

pytestmark = [pytest.mark.xdist_group("fleet"), pytest.mark.timeout(300)]

REQUESTS = 2_000
CLIENTS = 24
SUCCESS = 0.999
MOST_CALLS = 1.2

MODEL = """
[[models]]
id = "{name}"
context_window = 8192
max_output_tokens = 1024
price = {{ input_per_mtok = "1", output_per_mtok = "2" }}
"""
DEPLOYMENT = """
[[models.deployments]]
name = "{name}"
engine = "openai_compatible"
base_url = "{url}/v1"
timeouts = {{ connect_ms = 1000, first_delta_ms = {limit_ms} }}
{rules}
"""
FLEET: dict[str, dict[str, Any]] = {
    "flaky": {"status": 500, "fail_share": 0.3},
    "slow": {"ttft_ms": 2_000},
    "hanging": {"ttft_ms": 60_000},
    "throttled": {"status": 429, "per_second": 5, "retry_after": "1"},
    "healthy": {},
}
ATTEMPTS = """
import json
from django.db.models import Sum
from usage.models import Generation
rows = Generation.objects.filter(model="fleet")
failed = rows.exclude(outcome="completed").values_list("error_code", "attempt_log")
print(json.dumps([rows.aggregate(n=Sum("attempts"))["n"], list(failed)]))
"""


@pytest.fixture(autouse=True)
def second_worker(installation: Installation) -> None:
    """Start a second worker, and wait until each knows of the other."""
    if "worker-2" not in installation.processes:
        installation.start_worker("worker-2")
    with installation.open_valkey() as redis:

        def calls() -> list[float]:
            return [score for _, score in redis.zrange("chatapi:routing:workers", 0, -1, withscores=True)]

        wait_for(lambda: len(calls()) == 2, "two workers")
        both_known_at = max(calls())
        wait_for(lambda: min(calls()) > both_known_at, "each worker's next call")


def load_model(installation: Installation, name: str, *deployments: str) -> None:
    installation.load_catalog(MODEL.format(name=name) + "".join(deployments))


def deployment(
    installation: Installation, name: str, rules: str = "", url: str = "", limit_ms: int = 10_000
) -> str:
    return DEPLOYMENT.format(name=name, url=url or installation.upstream_url, rules=rules, limit_ms=limit_ms)


def ask_many(
    installation: Installation, model: str, requests: int, clients: int, **parameters: Any
) -> Counter[object]:
    """Send the requests from this number of clients at once, every other as a stream; count the outcomes."""
    client = Client(installation.url, installation.keys["live"])

    def ask(number: int) -> object:
        if number % 2:
            return client.complete(model, **parameters).status
        with client.asking(model, stream=True, **parameters) as exchange:
            if exchange.response.status != 200:
                return exchange.response.status
            return 200 if len(list(exchange.texts())) == 5 else "cut"

    with ThreadPoolExecutor(clients) as threads:
        return Counter(threads.map(ask, range(requests)))


def test_clients_do_not_notice_a_sick_fleet(installation: Installation) -> None:
    for name, script in FLEET.items():
        installation.script(name, **script)
    installation.run("mortal", [sys.executable, "-m", "tests.fake_upstream", "--port", "0"])
    wait_for(lambda: bool(installation.log("mortal").strip()), "the upstream that will die")
    mortal_url = f"http://127.0.0.1:{json.loads(installation.log('mortal').splitlines()[0])['port']}"
    mortal = deployment(installation, "mortal", 'upstream_model = "fake"', mortal_url)
    limits = {"hanging": 1_000}
    own = [
        deployment(installation, name, f'upstream_model = "{name}"', limit_ms=limits.get(name, 10_000))
        for name in FLEET
    ]
    load_model(installation, "fleet", mortal, *own)

    outcomes = ask_many(installation, "fleet", REQUESTS // 4, CLIENTS)
    with urllib.request.urlopen(f"{mortal_url}/stats") as answer:
        mortal_calls = json.load(answer)["requests"]
    installation.end("mortal", signal.SIGKILL)
    outcomes += ask_many(installation, "fleet", REQUESTS * 3 // 4, CLIENTS)

    calls = {name: len(installation.calls(name)) for name in FLEET} | {"mortal": mortal_calls}
    attempts, failed = json.loads(installation.shell(ATTEMPTS))
    figures = f"{outcomes}, {attempts} attempts, calls {calls}, {failed}"
    print(figures)
    assert sum(outcomes.values()) == REQUESTS
    assert outcomes[200] >= SUCCESS * REQUESTS, figures
    assert sum(calls.values()) <= MOST_CALLS * REQUESTS, figures
    assert attempts <= MOST_CALLS * REQUESTS, figures
    # Each would get a sixth if all were well.
    assert all(calls[name] < REQUESTS / 10 for name in ("slow", "hanging", "throttled")), figures


def test_clients_do_not_notice_that_all_deployments_but_one_are_flaky(installation: Installation) -> None:
    names = [f"often-fails-{number}" for number in range(5)]
    for name in names:
        installation.script(name, **FLEET["flaky"])
    installation.script("never-fails")
    load_model(
        installation,
        "flaky-fleet",
        *(deployment(installation, name, f'upstream_model = "{name}"') for name in (*names, "never-fails")),
    )
    outcomes = ask_many(installation, "flaky-fleet", REQUESTS // 2, CLIENTS)
    calls = {name: len(installation.calls(name)) for name in (*names, "never-fails")}
    figures = f"{outcomes}, calls {calls}"
    print(figures)
    assert outcomes[200] >= SUCCESS * REQUESTS // 2, figures
    assert sum(calls.values()) <= MOST_CALLS * REQUESTS // 2, figures


def test_a_deployment_that_has_recovered_is_asked_again(installation: Installation) -> None:
    installation.script("recovers", status=503)
    installation.script("spare")
    names = ("recovers", "spare")
    load_model(
        installation,
        "recovering",
        *(
            deployment(installation, name, f'upstream_model = "{name}"\npriority = {number}')
            for number, name in enumerate(names)
        ),
    )
    assert ask_many(installation, "recovering", 40, 8) == {200: 40}
    assert len(installation.calls("recovers")) < 20, "both workers know that it is down"
    installation.script("recovers")

    def is_back() -> bool:
        spare = len(installation.calls("spare"))
        assert ask_many(installation, "recovering", 4, 2) == {200: 4}
        return len(installation.calls("spare")) == spare

    wait_for(is_back, "the recovered deployment to get all requests", pause_s=0.2)


def test_clients_do_not_notice_that_a_models_deployments_are_all_dead(installation: Installation) -> None:
    installation.script("stands-in")
    dead = [
        deployment(installation, name, url=f"http://127.0.0.1:{free_port()}") for name in ("dead-1", "dead-2")
    ]
    load_model(installation, "dead", *dead)
    load_model(installation, "alive", deployment(installation, "alive", 'upstream_model = "stands-in"'))
    outcomes = ask_many(installation, "dead", REQUESTS // 2, CLIENTS, models=["alive"])
    attempts, failed = json.loads(installation.shell(ATTEMPTS.replace('"fleet"', '"alive"')))
    figures = f"{outcomes}, {attempts} attempts, {failed}"
    print(figures)
    assert outcomes[200] >= SUCCESS * REQUESTS // 2, figures
    assert len(installation.calls("stands-in")) <= MOST_CALLS * REQUESTS // 2, figures
    assert attempts <= MOST_CALLS * REQUESTS // 2, figures


@pytest.mark.parametrize("shared", ["cache key", "beginning"])
def test_requests_that_share_a_cache_go_to_one_deployment_from_all_workers(
    installation: Installation, shared: str
) -> None:
    model = f"caches-by-{shared.replace(' ', '-')}"
    names = [f"{model}-{number}" for number in range(4)]
    for name in names:
        installation.script(name)
    load_model(
        installation,
        model,
        *(deployment(installation, name, f'upstream_model = "{name}"') for name in names),
    )
    client = Client(installation.url, installation.keys["live"])

    def ask(number: int) -> int:
        title = f"document {number % 8}"
        if shared == "cache key":
            return client.complete(model, prompt_cache_key=title).status
        texts = {"system": f"{title}: {'word ' * 1_000}", "user": f"question {number}"}
        return client.complete(
            model, messages=[{"role": role, "content": text} for role, text in texts.items()]
        ).status

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(ask, range(64))) == {200}
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        for call in installation.calls(name):
            body = call["body"]
            homes[body.get("prompt_cache_key") or body["messages"][0]["content"]].add(name)
    assert [len(each) for each in homes.values()] == [1] * 8
    assert len(set.union(*homes.values())) > 1


@pytest.mark.parametrize(
    ("places", "most"), [(4, 4), pytest.param(1, 2, id="each of two workers has one place at least")]
)
def test_no_more_requests_are_in_flight_than_a_deployment_takes(
    installation: Installation, places: int, most: int
) -> None:
    name = f"narrow-{places}"
    installation.script(name, ttft_ms=100)
    load_model(installation, name, deployment(installation, name, f"max_concurrent = {places}"))
    assert ask_many(installation, name, 40, 20) == {200: 40}
    calls = installation.calls(name)
    moments = sorted([(call["opened_at"], 1) for call in calls] + [(call["closed_at"], -1) for call in calls])
    in_flight = [0]
    for _, change in moments:
        in_flight.append(in_flight[-1] + change)
    assert max(in_flight) == most


def test_a_deployment_that_stays_full_is_a_503_and_costs_nothing(installation: Installation) -> None:
    installation.script("stuck", ttft_ms=7_000)
    load_model(installation, "stuck", deployment(installation, "stuck", "max_concurrent = 2"))
    client = Client(installation.url, installation.keys["live"], timeout_s=30)
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda _: client.complete("stuck"), range(3)))
    (refused,) = (answer for answer in answers if answer.status != 200)
    assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (
        503,
        "deployments_busy",
        "1",
    )
    receipt = installation.receipt(refused.headers["x-generation-id"])
    assert (receipt["outcome"], receipt["amount_nanodollars"]) == ("failed", 0)


def test_a_model_that_stays_full_is_replaced_by_its_fallback(installation: Installation) -> None:
    installation.script("full", ttft_ms=7_000)
    installation.script("roomy")
    load_model(installation, "full", deployment(installation, "full", "max_concurrent = 2"))
    load_model(installation, "roomy", deployment(installation, "roomy"))
    client = Client(installation.url, installation.keys["live"], timeout_s=30)
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda _: client.complete("full", models=["roomy"]), range(3)))
    assert Counter(answer.json["model"] for answer in answers) == {"full": 2, "roomy": 1}
