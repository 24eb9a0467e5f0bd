"""What processes count by themselves, up to `/metrics`, and the files in deploy/ that use it."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse_text
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from accounts.loop_clock import LoopClock
from chatapi import process_metrics
from chatapi.process_metrics import Histogram
from tests.chatapi.http_client import Client
from tests.chatapi.test_every_protocol import body_of, routes, send
from tests.chatapi.worker.processes import Valkey
from tests.installation import ROOT, Installation, wait_for
from usage.models import Generation

pytestmark = [pytest.mark.xdist_group("process_metrics"), pytest.mark.timeout(180)]
has_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("CI"),
    reason="promtool is not installed: apt-get install prometheus",
)
TOKEN = "a-token-of-16-or-more"
STALL_S = 0.6
# The time between two tokens of a model.
PACE_S = 0.05
# The histograms that count the requests of all models together.
OF_ALL_MODELS = [f"chatapi_{name}_seconds" for name in ("admission", "queue_wait", "settlement")]
ALERTS, DASHBOARD = (
    ROOT / "deploy" / "prometheus" / "alerts.yml",
    ROOT / "deploy" / "grafana" / "chatapi.json",
)


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram("x", "", (1.0, 2.0), "model")
    for seconds in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(seconds, "a")
    assert process_metrics.buckets(histogram, histogram.series["a"]) == (
        [("1.0", 2), ("2.0", 3), ("+Inf", 4)],
        12.0,
    )
    assert process_metrics.buckets(histogram, [1.0]) is None


def test_to_observe_costs_next_to_nothing() -> None:
    histogram = Histogram("x", "", process_metrics.LATENCY_S)
    best_s = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(1_000):
            histogram.observe(0.3)
        best_s = min(best_s, (time.perf_counter() - began) / 1_000)
    assert best_s < 5e-6


async def test_the_lag_of_a_loop_is_that_of_its_latest_tick() -> None:
    clock = LoopClock()
    clock.start(asyncio.get_running_loop())
    await asyncio.sleep(0.01)  # its first tick
    time.sleep(0.6)  # noqa: ASYNC251  the loop has to stand still
    await asyncio.sleep(0.01)
    assert clock.take_lag_s() > 0.2
    assert clock.take_lag_s() == 0.0
    clock.stop()


def test_two_processes_never_have_one_name() -> None:
    """Containers may have the same process ids, and the same host's name or two that begin alike."""
    ask = """import os, socket
os.getpid, socket.gethostname = lambda: 4_194_304, lambda: "host" * 16
from chatapi import identity
print(identity.process_name())"""
    asked = [
        subprocess.run([sys.executable, "-c", ask], cwd=ROOT, check=True, capture_output=True) for _ in "ab"
    ]
    one, other = (each.stdout.decode().strip() for each in asked)
    assert one != other
    assert len(one) <= (Generation._meta.get_field("worker").max_length or 0)


async def test_pods_of_a_deployment_with_a_long_name_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes ends the name of each pod with five characters of its own; its process has the number 1."""
    pods = [f"the-chat-api-of-our-company-production-worker-7d9f8b6c5-{end}" for end in ("abcde", "fghij")]
    with Valkey(tmp_path) as valkey, Redis(unix_socket_path=str(valkey.socket)) as redis:
        async with AsyncRedis(unix_socket_path=str(valkey.socket)) as client:
            for pod in pods:
                monkeypatch.setattr("socket.gethostname", lambda pod=pod: pod)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await process_metrics.publish_forever(client, "t:", "worker", lambda: 0)
        assert len(process_metrics.read(redis, "t:")) == len(pods)


def test_a_process_that_writes_no_more_is_forgotten(tmp_path: Path) -> None:
    snapshot = msgspec.json.encode(process_metrics.Snapshot("worker", {}, {}))
    with Valkey(tmp_path) as valkey, Redis(unix_socket_path=str(valkey.socket)) as redis:
        now_s = redis.time()[0]
        redis.hset("t:metrics", "old", f"{now_s - 60} ".encode() + snapshot)
        redis.hset("t:metrics", "new", f"{now_s} ".encode() + snapshot)
        redis.hset("t:metrics", "strange", f"{now_s} {{}}")
        assert list(process_metrics.read(redis, "t:")) == ["new"]
        assert redis.hkeys("t:metrics") == [b"new", b"strange"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(tmp_path_factory.mktemp("metrics"), CHATAPI_METRICS_TOKEN=TOKEN) as service:
        models: dict[str, dict[str, Any]] = {
            "answers": {"tokens": 5},
            "every-protocol": {"tokens": 5},
            "begins-late": {"ttft_ms": STALL_S * 1_000},
            "stalls": {"tokens": 100, "stall_after": 50, "stall_ms": STALL_S * 1_000},
            "ends-late": {"tokens": 5, "stall_after": 5, "stall_ms": STALL_S * 1_000},
            "paced": {"tokens": 20, "rate": 1 / PACE_S, "ttft_ms": STALL_S * 1_000},
        }
        service.start(models)
        service.start_reaper()
        yield service


@pytest.fixture(scope="module")
def scraped(service: Installation) -> str:
    """Return the metrics of an installation that has served a few requests."""
    for key in ("live", "test"):
        Client(service.url, service.keys[key]).complete("answers", stream=True)
    wait_for(lambda: "chatapi_between_tokens_seconds_count" in scrape(service), "the worker's numbers")
    wait_for(lambda: "chatapi_client_first_token_seconds_count" in scrape(service), "the web process'")
    wait_for(lambda: "chatapi_delivery_attempts_total{" in scrape(service), "the reaper's numbers")
    return scrape(service)


def scrape(service: Installation) -> str:
    request = urllib.request.Request(f"{service.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def seconds_of(service: Installation, histogram: str, model: str, count: int = 1) -> float:
    """Return the sum of a model's observations, when there are as many; fail if there are more."""
    found: dict[str, float] = {}

    def is_counted() -> bool:
        found.update(
            {
                sample.name: sample.value
                for family in parse_text(scrape(service))
                for sample in family.samples
                if family.name == histogram and sample.labels["model"] == model
            }
        )
        return found.get(f"{histogram}_count", 0) >= count

    wait_for(is_counted, f"{count} of {histogram}", pause_s=0.2)
    assert found[f"{histogram}_count"] == count
    return found[f"{histogram}_sum"]


def sums(service: Installation) -> dict[str, tuple[float, float]]:
    """Return how much each histogram without models has counted, and the seconds of it."""
    found = {sample.name: sample.value for family in parse_text(scrape(service)) for sample in family.samples}
    return {each: (found[f"{each}_count"], found[f"{each}_sum"]) for each in OF_ALL_MODELS}


def test_each_process_has_its_numbers(scraped: str) -> None:
    found = {
        (sample.name, sample.labels["role"]): sample
        for family in parse_text(scraped)
        for sample in family.samples
        if "role" in sample.labels
    }
    for role in ("web", "worker"):
        assert found["chatapi_process_resident_bytes", role].value > 10_000_000
        assert found["chatapi_process_cpu_seconds_total", role].value > 0
        assert found["chatapi_process_open_descriptors", role].value > 5
    counts = {name: sample.value for (name, _), sample in found.items() if name.endswith("_count")}
    # The request of the test key is not among them.
    assert counts == {f"{each.name}_count": 1 for each in process_metrics.HISTOGRAMS}
    assert found["chatapi_first_token_seconds_count", "worker"].labels["model"] == "answers"


def test_a_client_s_first_token_counts_once_for_each_stream(scraped: str, service: Installation) -> None:
    """Every protocol's; neither of answers in one piece, nor of those that are resumed, repeated or flex."""
    client, model = Client(service.url, service.keys["live"]), "every-protocol"
    first = client.complete(model, stream=True, idempotency_key="once")
    assert client.complete(model, stream=True, idempotency_key="once").body == first.body
    resumed = client.send("GET", f"/v1/generations/{first.headers['x-generation-id']}/stream")
    assert (resumed.status, client.complete(model).status) == (200, 200)
    assert client.complete(model, stream=True, service_tier="flex").status == 200
    streaming = [route for route in routes(counting=False) if route != "embeddings"]
    for route in streaming:
        assert send(client, route, body_of(route) | {"stream": True}, model).status == 200
    seconds_of(service, "chatapi_client_first_token_seconds", model, 1 + len(streaming))


def test_a_web_process_that_stands_still_is_seen_in_its_clients_waits(
    scraped: str, service: Installation
) -> None:
    model, client = "begins-late", Client(service.url, service.keys["live"])
    with client.asking(model, stream=True) as exchange:
        wait_for(lambda: bool(service.calls(model)), "the upstream's call")
        stopped_at = time.monotonic()
        service.send("web", signal.SIGSTOP)
        try:
            wait_for(lambda: service.calls(model)[0]["is_completed"], "the upstream's end")
            wait_for(lambda: time.monotonic() - stopped_at > 3 * STALL_S, "twice that time")
        finally:
            service.send("web", signal.SIGCONT)
        assert "".join(exchange.texts())
    assert seconds_of(service, "chatapi_client_first_token_seconds", model) > 3 * STALL_S
    assert seconds_of(service, "chatapi_first_token_seconds", model) < 3 * STALL_S


def test_a_stall_that_the_mean_hides_is_the_longest_gap(scraped: str, service: Installation) -> None:
    assert Client(service.url, service.keys["live"]).complete("stalls", stream=True).status == 200
    assert seconds_of(service, "chatapi_longest_token_gap_seconds", "stalls") > 0.9 * STALL_S
    assert seconds_of(service, "chatapi_between_tokens_seconds", "stalls") < 0.1 * STALL_S


def test_a_wait_for_an_answer_s_end_is_no_gap_between_tokens(scraped: str, service: Installation) -> None:
    assert Client(service.url, service.keys["live"]).complete("ends-late", stream=True).status == 200
    assert seconds_of(service, "chatapi_longest_token_gap_seconds", "ends-late") < 0.9 * STALL_S


def test_each_histogram_has_the_time_that_it_is_named_after(scraped: str, service: Installation) -> None:
    """A request waits for a worker that stands still, then for its model's first token, then for each other
    one; to admit and to settle it takes a moment.
    """
    earlier = sums(service)
    service.send("worker", signal.SIGSTOP)
    try:
        with Client(service.url, service.keys["live"]).asking("paced", stream=True) as exchange:
            stopped_at = time.monotonic()
            wait_for(lambda: time.monotonic() - stopped_at > STALL_S, "a wait in the queue")
            service.send("worker", signal.SIGCONT)
            list(exchange.chunks())
    finally:
        service.send("worker", signal.SIGCONT)
    seconds_of(service, "chatapi_first_token_seconds", "paced")
    wait_for(lambda: all(sums(service)[each][0] > earlier[each][0] for each in OF_ALL_MODELS), "the others")
    took = {each: sums(service)[each][1] - earlier[each][1] for each in OF_ALL_MODELS}
    assert 0.5 * STALL_S < took["chatapi_queue_wait_seconds"] < 20 * STALL_S
    assert 0 < took["chatapi_admission_seconds"] < 1
    assert 0 < took["chatapi_settlement_seconds"] < 1
    assert 0.9 * STALL_S < seconds_of(service, "chatapi_first_token_seconds", "paced") < 10 * STALL_S
    assert 0.5 * PACE_S < seconds_of(service, "chatapi_between_tokens_seconds", "paced") < 3 * PACE_S


def test_a_reaper_shows_zero_attempts_of_each_outcome(scraped: str) -> None:
    attempts = [line for line in scraped.splitlines() if line.startswith("chatapi_delivery_attempts_total{")]
    assert len(attempts) == 6
    assert all('role="reaper"' in line and line.endswith(" 0.0") for line in attempts)


def test_a_snapshot_of_an_older_release_has_no_counters() -> None:
    old = b'{"role": "reaper", "gauges": {}, "histograms": {}}'
    assert msgspec.json.decode(old, type=process_metrics.Snapshot).counters == {}


def expressions() -> list[str]:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [rule["expr"] for rule in rules] + [each["expr"] for panel in panels for each in panel["targets"]]


def test_alerts_and_dashboard_use_metrics_that_exist(scraped: str) -> None:
    there = {sample.name for family in parse_text(scraped) for sample in family.samples}
    # Families that have no sample before the books were sealed and checked.
    there |= {f"chatapi_ledger_{name}" for name in ("last_seal_timestamp_seconds", "differences")}
    there.add("chatapi_ledger_last_check_timestamp_seconds")
    named = {name for text in expressions() for name in re.findall(r"\bchatapi_\w+", text)}
    assert sorted(named - there) == []
    assert len(named) > 20


def test_every_alert_says_what_to_do() -> None:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "action"}
            assert rule["labels"]["severity"] in ("page", "ticket")


@has_promtool
def test_promtool_accepts_rules_and_expressions(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for path in (ALERTS, tmp_path / "panels.yml"):
        done = subprocess.run(
            ["promtool", "check", "rules", path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
