"""`check --deploy` has nothing to say about production settings; HTTPS is known from trusted proxies, and
nothing is redirected.

No page may evaluate text as a script.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

ROOT = Path(__file__).parent.parent.parent
PRODUCTION = {
    "CHATAPI_SECRET_KEY": "5b1ae02c" * 8,
    "CHATAPI_KEY_PEPPER": "91f3d06e" * 8,
    "CHATAPI_ALLOWED_HOSTS": "chat.example.com",
    "CHATAPI_CSRF_TRUSTED_ORIGINS": "https://chat.example.com",
    "CHATAPI_SECURE_COOKIES": "on",
}


def check(tmp_path: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    environment = os.environ | {"CHATAPI_STATE_DIR": str(tmp_path)} | environment
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_production_settings_pass_the_deployment_checks(tmp_path: Path) -> None:
    done = check(tmp_path, **PRODUCTION)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("System check identified no issues")


def test_cookies_that_are_not_secure_are_warned_of(tmp_path: Path) -> None:
    done = check(tmp_path, **PRODUCTION | {"CHATAPI_SECURE_COOKIES": "off"})
    assert done.returncode != 0
    assert all(f"security.{number}" in done.stderr for number in ("W004", "W012", "W016"))


@pytest.fixture
def behind_https(settings: Settings) -> None:
    """Set what `CHATAPI_SECURE_COOKIES` sets, behind a proxy that ends TLS."""
    settings.SECURE_HSTS_SECONDS = 60
    settings.TRUSTED_PROXIES = ["10.0.0.5"]


@pytest.mark.usefixtures("behind_https")
@pytest.mark.parametrize("path", ["/docs", "/console/sign-in"])
@pytest.mark.parametrize(
    ("peer", "proto", "is_secure"),
    [("10.0.0.5", "https", True), ("10.0.0.5", "http", False), ("10.0.0.6", "https", False)],
)
def test_only_a_trusted_proxy_says_that_a_request_is_secure(
    db: None, path: str, peer: str, proto: str, is_secure: bool
) -> None:
    response: Any = Client().get(path, headers={"x-forwarded-proto": proto}, REMOTE_ADDR=peer)
    assert response.status_code == 200, "a scraper inside a cluster speaks plain HTTP"
    assert ("strict-transport-security" in response.headers) == is_secure


@pytest.mark.parametrize(
    ("peer", "headers", "status", "url"),
    [
        ("10.0.0.5", {"x-forwarded-host": "chat.example.com"}, 200, "http://chat.example.com"),
        ("10.0.0.5", {"forwarded": "proto=https;host=chat.example.com"}, 200, "https://chat.example.com"),
        ("10.0.0.5", {"x-forwarded-host": "evil.example"}, 400, ""),
        ("10.0.0.6", {"x-forwarded-host": "chat.example.com"}, 200, "http://testserver"),
        ("10.0.0.6", {"forwarded": "proto=https;host=chat.example.com"}, 200, "http://testserver"),
    ],
)
def test_the_front_page_has_the_url_that_a_trusted_proxy_names(
    db: None, settings: Settings, peer: str, headers: dict[str, str], status: int, url: str
) -> None:
    settings.TRUSTED_PROXIES, settings.ALLOWED_HOSTS = ["10.0.0.5"], ["testserver", "chat.example.com"]
    response: Any = Client().get("/", headers=headers, REMOTE_ADDR=peer)
    assert response.status_code == status
    assert f"curl {url}/v1/chat/completions" in response.content.decode() or status == 400


@pytest.mark.usefixtures("behind_https")
def test_a_connection_that_is_secure_itself_needs_no_proxy(db: None) -> None:
    assert "strict-transport-security" in Client().get("/docs", secure=True).headers


@pytest.mark.parametrize("path", ["/admin/", "/", "/docs", "/nowhere", "/v1/key"])
def test_no_page_may_evaluate_text(root: Client, path: str) -> None:
    policy = root.get(path).headers["content-security-policy"]
    scripts = next(each for each in policy.split("; ") if each.startswith("script-src "))
    assert "'unsafe-eval'" not in scripts
    assert "'unsafe-inline'" not in scripts


def test_alpine_and_the_replaced_templates_are_those_for_the_installed_theme() -> None:
    said = (ROOT / "chatapi/static/alpine/README.md").read_text()
    assert f"django-unfold {version('django-unfold')}," in said
