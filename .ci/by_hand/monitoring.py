"""docs/metrics.md and docs/tracing.md: Prometheus, and a collector of traces."""

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from by_hand.clients import stream
from by_hand.documents import METRICS, OPERATIONS, TRACING
from by_hand.machine import expect, fail, replace_once, run, wait_for
from by_hand.processes import (
    SET_ENVIRONMENT,
    SETTINGS,
    change_settings,
    doctor,
    restart_webs,
    restart_workers,
    run_with_settings,
)


def set_up_prometheus() -> None:
    """Let Debian's Prometheus scrape a web process and evaluate the rules."""
    run(METRICS.quoted("apt-get install prometheus"), online=True)
    run_with_settings(METRICS.block("install -m 640 -g prometheus"))
    copy = METRICS.quoted("/etc/prometheus/chatapi-alerts.yml")
    run(f"cp deploy/prometheus/alerts.yml {copy}")
    file = Path("/etc/prometheus/prometheus.yml")
    text = file.read_text()
    for block in (METRICS.block("scrape_configs:"), METRICS.block("rule_files:")):
        # Debian's file has the first line.
        text = replace_once(text, block.splitlines()[0] + "\n", block)
    file.write_text(replace_once(text, "chatapi.internal:8000", METRICS.quoted("127.0.0.1:8001")))
    run(METRICS.quoted("systemctl restart prometheus"))
    wait_for(is_scraped, "Prometheus to scrape all processes", 90)
    wait_for(rules_are_right, "Prometheus to evaluate the rules", 60)


def is_scraped() -> bool:
    """Return whether the target is up and all five processes have numbers."""
    stream()  # a web process has none before its first request
    targets = prometheus("targets").get("activeTargets", [])
    if [each["health"] for each in targets if each["labels"]["job"] == "chatapi"] != ["up"]:
        return False
    rows = prometheus("query", query="count by (role) (chatapi_process_resident_bytes)")["result"]
    seen = {each["metric"]["role"]: each["value"][1] for each in rows}
    return seen == {"web": "2", "worker": "2", "reaper": "1"}


def rules_are_right() -> bool:
    """Return whether all rules are evaluated; exit if one fires."""
    rules = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    if firing:
        fail(f"these alerts fire: {firing}")
    return len(rules) > 10 and {rule["health"] for rule in rules} == {"ok"}


def prometheus(path: str, **parameters: str) -> Any:
    """Return an answer of Prometheus' API; empty while it does not answer."""
    try:
        url = f"http://127.0.0.1:9090/api/v1/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return {}


def read_json_log() -> None:
    """Write the log as JSON, and look for the most expensive requests."""
    run("apt-get install jq", online=True)
    before = SETTINGS.read_text()
    change_settings(f"{OPERATIONS.quoted('CHATAPI_LOG_FORMAT=json')}\n")
    restart_workers()
    for _ in range(6):
        stream()
    write = OPERATIONS.quoted("journalctl -o cat -t python -u 'chatapi@worker*' > worker.log")
    found = json.loads(run(f"{write}\n{OPERATIONS.block('fromjson')}", folder="/root"))
    if [each["model"] for each in found] != ["sandbox"] * 5:
        fail(f"these are not the last requests: {found}")
    SETTINGS.write_text(before)
    restart_workers()


class Collector(BaseHTTPRequestHandler):
    """A collector that keeps what it receives."""

    received: list[bytes] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf"):
            self.received.append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def set_up_tracing() -> None:
    """Export traces, and check that spans of the web process and of the worker arrive."""
    settings = TRACING.block("OTEL_EXPORTER_OTLP_ENDPOINT=")
    endpoint = urlsplit(settings.strip().partition("=")[2])
    run(f"echo '127.0.0.1 {endpoint.hostname}' >> /etc/hosts")
    before = SETTINGS.read_text()
    change_settings(settings)
    # "If the variable is set and a package is missing … no process starts, and the last line says why."
    started = f"{SET_ENVIRONMENT}; .venv/bin/python manage.py serve --only worker 2>&1 || true"
    expect("OpenTelemetry is not installed", run(started).splitlines()[-1])
    run(TRACING.quoted("make tracing"), online=True)
    with ThreadingHTTPServer(("127.0.0.1", endpoint.port or 80), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        restart_workers()
        restart_webs()
        doctor()
        stream()
        wait_for(has_all_spans, "the spans of a request")
        SETTINGS.write_text(before)
        restart_workers()
        restart_webs()
        server.shutdown()


def has_all_spans() -> bool:
    """Return whether all three spans of a request have arrived."""
    received = b"".join(Collector.received)
    return all(name in received for name in (b"POST /v1/chat/completions", b"process generations", b"chat "))
