"""The manifests in deploy/ fit the project, and the commands for an installation by hand name what exists."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from django.core.management import load_command_class

from chatapi import local_secrets, settings
from tests.chatapi.test_compose import README_SETTINGS
from tests.installation import ROOT

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.timeout(180)]
FOLDER = ROOT / "deploy"
MANIFESTS: list[dict[str, Any]] = [
    document
    for path in sorted((FOLDER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in MANIFESTS if each["kind"] == kind]


PODS = [each["spec"]["template"] for each in [*of_kind("Deployment"), *of_kind("Job")]]
CONFIG = of_kind("ConfigMap")[0]["data"]


# ---- Kubernetes; `make lint` compares the manifests with the schemas


def test_there_is_all_that_an_installation_needs() -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in MANIFESTS}
    for role in ("web", "worker", "reaper"):
        assert ("Deployment", f"chatapi-{role}") in names
    for role in ("web", "worker"):
        assert {
            ("PodDisruptionBudget", f"chatapi-{role}"),
            ("HorizontalPodAutoscaler", f"chatapi-{role}"),
        } <= names
    assert {("Job", "chatapi-migrate"), ("Service", "chatapi"), ("Secret", "chatapi-upstreams")} <= names


@pytest.mark.parametrize(
    "pod", PODS, ids=lambda pod: pod["metadata"]["labels"]["app.kubernetes.io/component"]
)
def test_a_pod_runs_a_command_that_exists_without_rights(pod: dict[str, Any]) -> None:
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    python, manage, command, *arguments = container["args"]
    assert (python, manage) == ("python", "manage.py")
    app = "django.core" if command == "migrate" else "chatapi"
    parser: argparse.ArgumentParser = load_command_class(app, command).create_parser("manage.py", command)
    parser.parse_args(arguments)
    user = re.search(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    assert user is not None
    assert spec["securityContext"]["runAsUser"] == int(user[1])
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert spec["enableServiceLinks"] is False
    assert {"name": "state", "mountPath": "/var/lib/chatapi"} in container["volumeMounts"]


@pytest.mark.parametrize("deployment", of_kind("Deployment"), ids=lambda each: each["metadata"]["name"])
def test_a_deployment_ends_after_its_drain_and_never_has_too_few(deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] * 1_000 >= int(CONFIG["CHATAPI_DRAIN_MS"]) + 10_000
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    (container,) = spec["containers"]
    assert {"readinessProbe", "livenessProbe"} <= set(container)
    assert "lifecycle" not in container, "the lame duck is in the process"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels


def test_probes_and_autoscalers_name_what_exists() -> None:
    (web,) = [each for each in of_kind("Deployment") if each["metadata"]["name"] == "chatapi-web"]
    (container,) = web["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    deployments = {each["metadata"]["name"] for each in of_kind("Deployment")}
    assert {
        each["spec"]["scaleTargetRef"]["name"] for each in of_kind("HorizontalPodAutoscaler")
    } <= deployments


def test_the_adapters_rule_offers_the_metric_by_which_workers_scale() -> None:
    (worker,) = [
        each
        for each in of_kind("HorizontalPodAutoscaler")
        if each["spec"]["scaleTargetRef"]["name"] == "chatapi-worker"
    ]
    (metric,) = [each["external"] for each in worker["spec"]["metrics"] if each["type"] == "External"]
    name = metric["metric"]["name"]
    assert f"| `{name}` |" in (ROOT / "docs" / "metrics.md").read_text()
    document = (FOLDER / "kubernetes" / "README.md").read_text()
    (rule,) = yaml.safe_load(re.findall(r"(?m)^    externalRules:\n(?: {6}.+\n)+", document)[0])[
        "externalRules"
    ]
    assert rule["seriesQuery"] == name
    assert rule["metricsQuery"] == f"max({name})"
    assert rule["name"]["as"] == name
    assert rule["resources"] == {"namespaced": False}


def test_commands_run_in_pods_after_all_deployments_are_there() -> None:
    first, _, _ = (FOLDER / "kubernetes" / "README.md").read_text().partition("kubectl exec")
    [waited] = re.findall(r"(?m)^    kubectl rollout status (.+) --timeout=\w+$", first)
    assert set(waited.split()) == {f"deploy/{each['metadata']['name']}" for each in of_kind("Deployment")}


def test_settings_and_secrets_have_names_that_are_read_and_no_values() -> None:
    main, upstreams = of_kind("Secret")
    assert set(CONFIG) | set(main["stringData"]) <= README_SETTINGS
    assert not any(value for name, value in main["stringData"].items() if name.startswith("CHATAPI_"))
    assert set(upstreams["stringData"].values()) == {""}
    with_upstreams = [
        pod
        for pod in PODS
        if {"secretRef": {"name": "chatapi-upstreams"}} in pod["spec"]["containers"][0]["envFrom"]
    ]
    assert [pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in with_upstreams] == ["worker"]
    assert settings.ALLOWED_HOSTS  # the settings can be read


def test_a_connection_that_verifies_the_database_names_the_authority() -> None:
    urls = [url for each in of_kind("Secret") for name, url in each["stringData"].items() if "_URL" in name]
    verifying = [parse_qs(urlsplit(url).query) for url in urls if "sslmode=verify-" in url]
    assert verifying  # without it, libpq looks for ~/.postgresql/root.crt, and does not connect
    assert {path for query in verifying for path in query["sslrootcert"]} == {
        "/etc/ssl/certs/ca-certificates.crt"
    }


# ---- by hand


def test_the_commands_of_an_installation_by_hand_name_what_exists(tmp_path: Path) -> None:
    """docs/operations.md: settings, each process's options, and a unit that systemd reads."""
    text = (ROOT / "docs" / "operations.md").read_text()
    text = text.partition("## By hand, on Debian\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"(?m)^    (CHATAPI_\w+|\w+_URL)=", text))
    assert named < README_SETTINGS | {*local_secrets.NAMES}
    parser: Any = load_command_class("chatapi", "serve").create_parser("manage.py", "serve")
    options = re.findall(r"echo 'OPTIONS=(.*)'", text)
    assert [parser.parse_args(each.split()).only for each in options] == ["web", "web", "worker", "reaper"]
    for command in set(re.findall(r"manage\.py (\w+)", text)) - {"migrate", "createsuperuser"}:
        load_command_class("chatapi", command)
    [unit] = re.findall(r"(?m)(^    \[Service\]\n(?:    .+\n|\n)+)", text)
    # The unit's user reads no bytecode of root's commands, and can write none beside the code.
    bytecode = re.search(r"Environment=PYTHONPYCACHEPREFIX=/var/cache/(.+)", unit)
    assert bytecode
    assert f"CacheDirectory={bytecode[1]}\n" in unit
    if shutil.which("systemd-analyze"):
        path = tmp_path / "chatapi@web1.service"
        unit = re.sub(r"(?m)^    ", "", unit)
        path.write_text(unit.replace("/srv/chatapi/.venv/bin/python", sys.executable))
        command = ["systemd-analyze", "verify", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert path.name not in done.stderr, done.stderr
