"""A real Prometheus that scrapes an installation as docs/metrics.md says: the alerts and the dashboard."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from chatapi.process_metrics import HISTOGRAMS
from tests.chatapi.http_client import Client
from tests.installation import ROOT, Installation, die_with_parent, free_port, wait_for

pytestmark = [
    pytest.mark.xdist_group("prometheus"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("prometheus") is None and not os.environ.get("CI"),
        reason="Prometheus is not installed: apt-get install prometheus",
    ),
]
TOKEN = "a-token-of-16-or-more"
# These have no series in an installation that is all right, or that has no request that failed.
MAY_BE_EMPTY = "chatapi_ledger_|overage"


def configuration(service: Installation, folder: Path) -> dict[str, Any]:
    """Return the document's configuration with the token and the address of this installation."""
    [written] = re.findall(
        r"```yaml\n(scrape_configs.*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.S
    )
    found: dict[str, Any] = yaml.safe_load(written)
    (folder / "token").write_text(TOKEN)
    [job] = found["scrape_configs"]
    job["authorization"]["credentials_file"] = str(folder / "token")
    job["static_configs"] = [{"targets": [f"127.0.0.1:{service.port}"]}]
    rules = [str(ROOT / "deploy" / "prometheus" / "alerts.yml")]
    return found | {"rule_files": rules, "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a Prometheus that has scraped some requests and their aftermath."""
    folder = tmp_path_factory.mktemp("data")
    with Installation(tmp_path_factory.mktemp("prometheus"), CHATAPI_METRICS_TOKEN=TOKEN) as service:
        service.start({"answers": {"tokens": 5}})
        service.start_reaper()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration(service, folder)))
        port = free_port()
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, preexec_fn=die_with_parent)  # noqa: PLW1509
        url, client = f"http://127.0.0.1:{port}", Client(service.url, service.keys["live"])
        try:
            wait_for(lambda: service.get("/readyz")[0] == 200 and is_up(url), "a scrape", 30)

            def has_rates() -> bool:
                assert client.complete("answers", stream=True).status == 200
                return all(query(url, f"rate({each.name}_count[1m]) > 0") for each in HISTOGRAMS)

            wait_for(has_rates, "rates of all histograms", 60, pause_s=0.5)
            attempts = "increase(chatapi_delivery_attempts_total[1m])"
            wait_for(lambda: bool(query(url, attempts)), "the reaper's numbers", 60, pause_s=0.5)
            yield url
        finally:
            process.terminate()
            process.wait(20)


def is_up(url: str) -> bool:
    try:
        return bool(query(url, 'up{job="chatapi"} == 1'))
    except OSError:
        return False


def api(url: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urlencode(parameters)}", timeout=20) as answer:
        return json.load(answer)["data"]


def query(url: str, expression: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api(url, "query", query=expression)["result"]
    return found


def test_every_query_of_the_dashboard_has_an_answer(prometheus: str) -> None:
    panels = json.loads((ROOT / "deploy" / "grafana" / "chatapi.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 20
    empty = [each for each in expressions if not query(prometheus, each)]
    assert [each for each in empty if not re.search(MAY_BE_EMPTY, each)] == []


def test_every_alert_is_evaluated_and_none_fires(prometheus: str) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in api(prometheus, "rules")["groups"] for rule in group["rules"]]

    wait_for(lambda: all(rule["health"] != "unknown" for rule in rules()), "all rules")
    assert len(rules()) > 10
    assert [rule["lastError"] for rule in rules() if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []
