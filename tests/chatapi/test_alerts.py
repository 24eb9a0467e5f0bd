"""Which alerts of deploy/prometheus/alerts.yml fire after an hour of samples."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.installation import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
NAMES = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
REQUESTS = 'chatapi_requests_total{outcome="%s"}'
ATTEMPTS = 'chatapi_delivery_attempts_total{kind="mail",outcome="%s",process="%s"}'
ENDPOINTS = 'chatapi_webhook_endpoints{state="%s"}'
ADMISSION = 'chatapi_admission_seconds_bucket{le="%s",process="a",role="web"}'
GAP = 'chatapi_longest_token_gap_seconds_%s{%smodel="small",process="a",role="worker"}'
LAG = 'chatapi_process_event_loop_lag_seconds{process="a",role="web"}'
SERVER = 'chatapi_stream_server_up{instance="%s",server="1"}'
UNSEALED, SEALED_AT = "chatapi_ledger_unsealed_entries", "chatapi_ledger_last_seal_timestamp_seconds"
CHECKED_AT = "chatapi_ledger_last_check_timestamp_seconds"
# Of everything that an alert looks at: one sample each minute from the time 0 on.
HEALTHY = {
    'up{job="chatapi"}': "1x60",
    REQUESTS % "completed": "1000+60x60",
    REQUESTS % "failed": "100+1x60",
    REQUESTS % "worker_lost": "3x60",
    REQUESTS % "not_started": "0x60",
    "chatapi_queue_oldest_age_seconds": "0 6 1x58",
    SERVER % "a": "1x60",
    "chatapi_broker_up": "1x60",
    "chatapi_lease_overdue_seconds": "2x60",
    'chatapi_overage_dollars_total{model="small"}': "0.5x60",
    "chatapi_ledger_differences": "0x60",
    CHECKED_AT: "0x60",
    UNSEALED: "7x60",
    SEALED_AT: "0+60x60",
    "chatapi_events_oldest_age_seconds": "10x60",
    ATTEMPTS % ("retried", "a"): "0+1x60",
    ATTEMPTS % ("delivered", "b"): "0+1x60",
    'chatapi_deliveries{kind="mail",state="failed"}': "0x60",
    ENDPOINTS % "failing": "5x60",
    ENDPOINTS % "working": "6x60",
    ADMISSION % "0.5": "0+60x60",
    ADMISSION % "1.0": "0+61x60",
    ADMISSION % "+Inf": "0+61x60",
    GAP % ("bucket", 'le="10.0",'): "0+60x60",
    GAP % ("count", ""): "0+61x60",
    LAG: "0.1x60",
}
# What differs from it, and which alerts fire.
HOURS = {
    "all is well": ({}, set()),
    "the target is down": ({'up{job="chatapi"}': "1x50 0x10"}, {"ChatapiDown"}),
    "one of ten fails": ({REQUESTS % "failed": "100+7x60"}, {"ChatapiErrors"}),
    "a worker died": ({REQUESTS % "worker_lost": "3x55 4x5"}, {"ChatapiClosedByReaper"}),
    "no worker is free": ({"chatapi_queue_oldest_age_seconds": "0x50 0+60x10"}, {"ChatapiQueueWaits"}),
    # The last of two web processes still has an answer of that server.
    "a stream server is down": ({SERVER % "b": "1x50 0x10"}, {"ChatapiStreamServerDown"}),
    "the broker is down": ({"chatapi_broker_up": "1x50 0x10"}, {"ChatapiBrokerDown"}),
    "leases are overdue": ({"chatapi_lease_overdue_seconds": "0x50 0+60x10"}, {"ChatapiNoReaper"}),
    # Leases ran out while the database was away; a reaper closes them when it is back.
    "leases were overdue for a moment": ({"chatapi_lease_overdue_seconds": "0x59 60"}, set()),
    "an upstream uses more than it may": (
        {'chatapi_overage_dollars_total{model="small"}': "0.5x30 0.6x30"},
        {"ChatapiOverages"},
    ),
    "the books are wrong": ({"chatapi_ledger_differences": "0x59 1"}, {"ChatapiBooksWrong"}),
    "the books are not checked": ({CHECKED_AT: "-7260x60"}, {"ChatapiBooksUnchecked"}),
    "sealing has ended": ({SEALED_AT: "0x60"}, {"ChatapiLedgerUnsealed"}),
    "no seal was ever made": ({SEALED_AT: "_x60"}, {"ChatapiLedgerUnsealed"}),
    "the first request for an hour": ({UNSEALED: "0x59 7", SEALED_AT: "0x60"}, set()),
    "nothing is sent": ({ATTEMPTS % ("retried", "a"): "0x60", ATTEMPTS % ("delivered", "b"): "0x60"}, set()),
    "no mail arrives": ({ATTEMPTS % ("delivered", "b"): "7x60"}, {"ChatapiMailFails"}),
    "mail was given up": (
        {'chatapi_deliveries{kind="mail",state="failed"}': "2x60"},
        {"ChatapiMailGivenUp"},
    ),
    "most endpoints fail": ({ENDPOINTS % "failing": "7x60"}, {"ChatapiWebhooksFail"}),
    "events wait": ({"chatapi_events_oldest_age_seconds": "0+60x60"}, {"ChatapiEventsWait"}),
    "admission is slow": (
        {ADMISSION % "1.0": "0+70x60", ADMISSION % "+Inf": "0+70x60"},
        {"ChatapiSlowOverhead"},
    ),
    "one of eleven answers stalls": ({GAP % ("count", ""): "0+66x60"}, {"ChatapiStreamsStall"}),
    "one of two answers stalls, of few": (
        {GAP % ("bucket", 'le="10.0",'): "0+1x60", GAP % ("count", ""): "0+2x60"},
        set(),
    ),
    "answers stall, and the store writes whole numbers": (
        {
            GAP % ("bucket", 'le="10.0",'): "_x60",
            GAP % ("bucket", 'le="10",'): "0+60x60",
            GAP % ("count", ""): "0+66x60",
        },
        {"ChatapiStreamsStall"},
    ),
    "none stalls, and the store writes whole numbers": (
        {GAP % ("bucket", 'le="10.0",'): "_x60", GAP % ("bucket", 'le="10",'): "0+60x60"},
        set(),
    ),
    "a loop is blocked": ({LAG: "0.1x50 2x10"}, {"ChatapiEventLoopLag"}),
}


def test_each_alert_fires_after_some_hour() -> None:
    assert set[str]().union(*(fire for _, fire in HOURS.values())) == NAMES


@pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("CI"),
    reason="promtool is not installed: apt-get install prometheus",
)
def test_alerts_fire_when_they_should_and_no_others(tmp_path: Path) -> None:
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [
                {"series": series, "values": values} for series, values in (HEALTHY | hour).items()
            ],
            "promql_expr_test": [
                {
                    "expr": "count by (alertname) (ALERTS{alertstate='firing'})",
                    "eval_time": "1h",
                    "exp_samples": [
                        {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(fire)
                    ],
                }
            ],
        }
        for name, (hour, fire) in HOURS.items()
    ]
    path = tmp_path / "tests.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
