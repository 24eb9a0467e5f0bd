"""docker-compose.yml and the Dockerfile name what there is: no Docker is needed to find a broken one."""

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import load_command_class
from opentelemetry.sdk import environment_variables

from chatapi import local_secrets, settings

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OURS = sorted(name for name, service in SERVICES.items() if service.get("image") == "chatapi")


def valkey_options() -> dict[str, str]:
    server, *words = SERVICES["valkey"]["command"]
    assert server == "valkey-server"
    return dict(zip(words[::2], words[1::2], strict=True))


def test_every_process_is_a_service() -> None:
    assert set(SERVICES) == {"migrate", "web", "worker", "reaper", "valkey", "postgres"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_and_time_to_stop(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"].get("test") or name == "migrate"
    assert service["stop_grace_period"].removesuffix("}").endswith("s")


@pytest.mark.parametrize("name", OURS)
def test_every_command_exists(name: str) -> None:
    python, manage, command, *arguments = SERVICES[name]["command"]
    assert (python, manage) == ("python", "manage.py")
    app = "django.core" if command == "migrate" else "chatapi"
    parser: argparse.ArgumentParser = load_command_class(app, command).create_parser("manage.py", command)
    parser.parse_args(arguments)


@pytest.mark.parametrize("name", OURS)
def test_every_setting_is_read_by_the_settings(name: str) -> None:
    source = Path(settings.__file__).read_text()
    of_libraries = {"OPENAI_API_KEY", "SSL_CERT_FILE", *dir(environment_variables)}
    names = set(SERVICES[name]["environment"]) - of_libraries
    assert [
        setting for setting in names if f'"{setting}"' not in source and setting not in local_secrets.NAMES
    ] == []


README_SETTINGS = {
    name
    for cell in re.findall(r"^\| (`[^|]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    for name in re.findall(r"`([A-Z_]+)`", cell)
    if name.startswith(("CHATAPI_", "OTEL_")) or name.endswith("_URL")
}


@pytest.mark.parametrize("name", OURS)
def test_every_setting_of_the_readme_reaches_each_process(name: str) -> None:
    assert len(README_SETTINGS) > 40
    of_the_image = set(re.findall(r"\b(\w+)=", (ROOT / "Dockerfile").read_text()))
    of_traces = set(re.findall(r'"(OTEL_\w+)"', Path(settings.__file__).read_text()))
    assert sorted((README_SETTINGS | of_traces) - of_the_image - set(SERVICES[name]["environment"])) == []


def test_the_readme_has_every_setting() -> None:
    read = set(re.findall(r'"((?:CHATAPI_\w+|\w+_URL))"', Path(settings.__file__).read_text()))
    assert sorted(read - README_SETTINGS - {"CHATAPI_FAILPOINTS", "CHATAPI_"}) == []


@pytest.mark.parametrize("name", OURS)
def test_secrets_come_from_outside_and_must_be_given(name: str) -> None:
    environment = SERVICES[name]["environment"]
    for secret in ("CHATAPI_SECRET_KEY", "CHATAPI_KEY_PEPPER"):
        assert environment[secret].startswith(f"${{{secret}:?")
    assert "${POSTGRES_PASSWORD:?" in environment["DATABASE_URL"]


@pytest.mark.parametrize("name", OURS)
def test_an_authority_of_the_operators_own_reaches_each_process(name: str) -> None:
    """Not by the libraries' name: many shells export that, with a path that the containers do not have."""
    value = SERVICES[name]["environment"]["SSL_CERT_FILE"]
    assert value == "${TRUSTED_CA_FILE:-/etc/ssl/certs/ca-certificates.crt}"
    assert "`TRUSTED_CA_FILE`" in (ROOT / "docs/notifications.md").read_text()


@pytest.mark.parametrize("name", OURS)
def test_every_build_has_the_packages_that_the_environment_chooses(name: str) -> None:
    options = re.findall(r"^ARG (\w+)=$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert options == ["TRACING", "PAYMENT"]
    assert SERVICES[name]["build"]["args"] == {option: f"${{{option}:-}}" for option in options}


def test_no_command_has_an_option_that_the_next_up_forgets() -> None:
    pages = [ROOT / "README.md", ROOT / "docker-compose.yml", *ROOT.glob("docs/*.md")]
    commands = [found for page in pages for found in re.findall(r"docker compose [^`\n]+", page.read_text())]
    assert len(commands) > 5
    assert [each for each in commands if re.search("--(build-arg|scale)", each)] == []


@pytest.mark.parametrize("name", OURS)
def test_there_is_more_time_to_stop_than_a_drain_takes(name: str) -> None:
    grace = re.fullmatch(r"\$\{STOP_GRACE_PERIOD:-(\d+)s\}", SERVICES[name]["stop_grace_period"])
    assert grace, "it follows a longer drain"
    assert int(grace[1]) * 1_000 > settings.DRAIN_MS


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_starts_before_what_it_needs(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        assert how["condition"] == (
            "service_completed_successfully" if needed == "migrate" else "service_healthy"
        )


def test_valkey_never_evicts() -> None:
    assert valkey_options()["--maxmemory-policy"] == "noeviction"


def test_valkey_keeps_what_was_said_on_no_disk_and_in_no_log() -> None:
    """Only between an orderly end and the next start there is a dump, which is read before Valkey answers."""
    wanted = {"appendonly": "no", "save": "", "shutdown-on-sigterm": "save", "slowlog-log-slower-than": "-1"}
    wanted["commandlog-request-larger-than"] = "-1"
    assert {f"--{name}": value for name, value in wanted.items()}.items() <= valkey_options().items()
    assert SERVICES["valkey"]["healthcheck"]["test"][1].endswith("&& rm -f /data/*.rdb")


def test_the_image_holds_what_runs_and_is_not_root() -> None:
    copied = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert copied == {"LICENSE", "accounts", "chatapi", "usage", "docs", "manage.py", "requirements"}
    assert all((ROOT / path).exists() for path in copied)
    assert "USER chatapi" in (ROOT / "Dockerfile").read_text()
