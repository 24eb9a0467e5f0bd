"""The log: a line for each generation and other request, in both formats, without content."""

import json
import logging
import signal
import time
import tomllib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

import chatapi
from chatapi.log_formats import ConsoleFormatter, JSONFormatter, fields
from tests.chatapi.http_client import Client
from tests.installation import ROOT, Installation, wait_for

pytestmark = [pytest.mark.xdist_group("logs"), pytest.mark.timeout(180)]


def record(message: str, **values: Any) -> logging.LogRecord:
    found = logging.LogRecord("chatapi.test", logging.INFO, __file__, 1, message, (), None)
    found.__dict__.update(fields(**values))
    return found


def test_a_console_line_has_a_time_with_its_zone_and_the_fields() -> None:
    when, rest = ConsoleFormatter().format(record("generation", id="a1", error=None)).split(" ", 1)
    assert datetime.fromisoformat(when).tzinfo is not None
    assert rest == "I chatapi.test: generation id=a1"


def test_a_json_line_is_one_object_with_any_content() -> None:
    line = JSONFormatter().format(record('two\nlines "quoted"', status=200))
    assert "\n" not in line
    found = json.loads(line)
    assert datetime.fromisoformat(found.pop("time")).tzinfo is not None
    assert found == {
        "level": "info",
        "logger": "chatapi.test",
        "message": 'two\nlines "quoted"',
        "status": 200,
    }


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chatapi.__version__ == project["version"]


# The time for which a request may wait in the queue.
QUEUE_TTL_S = 3
ALIAS = """
from accounts.models import Project
print(Project.objects.update(model_aliases={"gpt-5.6": "answers"}))
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(
        tmp_path_factory.mktemp("logs"),
        CHATAPI_LOG_FORMAT="json",
        CHATAPI_QUEUE_TTL_MS=str(1_000 * QUEUE_TTL_S),
    ) as service:
        service.start({"answers": {}, "refuses": {"status": 500}, "steady": {"tokens": 1_000, "rate": 50}})
        yield service


def lines(service: Installation, process: str, logger: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in service.log(process).splitlines()]
    return [line for line in found if line["logger"] == logger]


def ends(service: Installation, model: str, process: str = "worker") -> list[dict[str, Any]]:
    return [line for line in lines(service, process, "chatapi.generations") if line["model"] == model]


def test_each_process_says_what_it_is_when_it_starts(service: Installation) -> None:
    if "reaper" not in service.processes:
        service.start_reaper()

    def own_line(role: str) -> list[dict[str, Any]]:
        pid = service.processes[role].pid
        return [line for line in lines(service, role, "chatapi") if line["pid"] == pid]

    wait_for(lambda: all(map(own_line, ("web", "worker", "reaper"))), "the line of each")
    (web,), (worker,), (reaper,) = map(own_line, ("web", "worker", "reaper"))
    assert (web["role"], web["version"], web["address"]) == ("web", chatapi.__version__, service.url)
    for role, line in (("worker", worker), ("reaper", reaper)):
        assert (line["role"], line["version"], "address" in line) == (role, chatapi.__version__, False)


def test_a_generation_has_one_line_when_it_has_ended(service: Installation) -> None:
    earlier, client = len(ends(service, "answers")), Client(service.url, service.keys["live"])
    answer = client.complete("answers", messages=[{"role": "user", "content": "a secret word"}])
    wait_for(lambda: len(ends(service, "answers")) > earlier, "the line")
    (line,) = ends(service, "answers")[earlier:]
    assert answer.headers["x-generation-id"] == f"chatcmpl-{line['id']}"
    assert service.keys["live"].startswith(f"ck_live_{line['key']}_")
    receipt = service.receipt(f"chatcmpl-{line['id']}")
    assert line["prompt_tokens"] == receipt["usage"]["prompt_tokens"]
    assert line["completion_tokens"] == receipt["usage"]["completion_tokens"]
    assert (line["outcome"], line["deployment"], line["attempts"]) == ("completed", "upstream", 1)
    assert float(line["cost_usd"]) > 0
    assert 0 <= line["first_token_ms"] <= line["last_token_ms"] <= line["total_ms"]
    assert "error" not in line


def test_a_failure_has_its_code(service: Installation) -> None:
    client = Client(service.url, service.keys["live"])
    client.complete("refuses", messages=[{"role": "user", "content": "a secret word"}])
    wait_for(lambda: bool(ends(service, "refuses")), "the line")
    (line,) = ends(service, "refuses")
    assert (line["outcome"], line["cost_usd"]) == ("failed", "0.000000000")
    assert line["error"]
    assert line["attempts"] == len(service.calls("refuses")) > 1


def test_a_model_by_its_alias_has_both_names(service: Installation) -> None:
    assert int(service.shell(ALIAS)) > 0

    def named() -> list[dict[str, Any]]:
        return [line for line in ends(service, "answers") if "requested_model" in line]

    def asks() -> bool:  # until the web process has read the alias
        return Client(service.url, service.keys["live"]).complete("gpt-5.6").status == 200

    wait_for(asks, "the alias", pause_s=0.2)
    wait_for(lambda: bool(named()), "the line")
    assert named()[0]["requested_model"] == "gpt-5.6"


def test_what_a_killed_worker_ran_has_a_line_of_the_reaper(service: Installation) -> None:
    if "reaper" not in service.processes:
        service.start_reaper()
    client = Client(service.url, service.keys["live"])
    with client.asking("steady", stream=True) as exchange:
        next(exchange.chunks())
        service.end("worker")
        list(exchange.chunks())
    wait_for(lambda: bool(ends(service, "steady", "reaper")), "the line")
    service.replace("worker", "manage.py")
    (line,) = ends(service, "steady", "reaper")
    receipt = service.receipt(f"chatcmpl-{line['id']}")
    assert (line["outcome"], receipt["outcome"]) == ("worker_lost", "worker_lost")
    assert line["completion_tokens"] == receipt["usage"]["completion_tokens"] > 0
    assert float(line["cost_usd"]) > 0
    assert "total_ms" not in line


def test_what_no_worker_takes_has_a_line_of_the_web_process(service: Installation) -> None:
    service.end("reaper", signal.SIGTERM)
    service.send("worker", signal.SIGSTOP)
    try:
        answer = Client(service.url, service.keys["live"]).complete("answers")
    finally:
        service.send("worker", signal.SIGCONT)
    assert answer.status == 503
    wait_for(lambda: bool(ends(service, "answers", "web")), "the line")
    (line,) = ends(service, "answers", "web")
    assert (line["outcome"], line["error"]) == ("not_started", answer.error["code"])
    assert (line["completion_tokens"], line["cost_usd"]) == (0, "0.000000000")


def test_a_line_has_the_time_in_the_queue(service: Installation) -> None:
    earlier, client = len(ends(service, "answers")), Client(service.url, service.keys["live"])
    service.send("worker", signal.SIGSTOP)
    try:
        with client.asking("answers", stream=True) as exchange:
            asked_at = time.monotonic()
            wait_for(lambda: time.monotonic() - asked_at > QUEUE_TTL_S / 6, "a part of the queue's limit")
            service.send("worker", signal.SIGCONT)
            list(exchange.chunks())
    finally:
        service.send("worker", signal.SIGCONT)
    wait_for(lambda: len(ends(service, "answers")) > earlier, "the line")
    assert 500 * QUEUE_TTL_S / 6 < ends(service, "answers")[-1]["queued_ms"] < 1_000 * QUEUE_TTL_S


def test_other_requests_have_an_access_line(service: Installation) -> None:
    before = len(lines(service, "web", "chatapi.access"))
    client = Client(service.url, service.keys["live"])
    client.complete("no-such-model", messages=[])
    service.get("/v1/models", service.keys["live"])
    service.get("/v1/nowhere?ck_live_no", service.keys["live"])
    found = lines(service, "web", "chatapi.access")[before:]
    assert [(line["method"], line["status"]) for line in found] == [("POST", 400), ("GET", 200), ("GET", 404)]
    assert found[0]["message"] == "chat"
    assert "models" in found[1]["message"]
    assert found[2]["message"] == "no route"
    assert all(line["ms"] >= 0 for line in found)


def test_the_log_has_neither_content_nor_secrets(service: Installation) -> None:
    text = service.log("web") + service.log("worker")
    assert "a secret word" not in text
    assert service.keys["live"] not in text
    assert service.environment["CHATAPI_KEY_PEPPER"] not in text
