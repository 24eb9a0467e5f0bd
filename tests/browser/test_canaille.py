"""An organization's people sign in at Canaille, an identity provider with accounts, passwords and groups of
its own. `make test-clients` installs it.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PASSPHRASE, enter, enter_provider
from tests.certificates import make_certificate
from tests.installation import ROOT, Installation, free_port
from tests.server_process import running

PROGRAM = ROOT / ".venv" / "canaille" / "bin" / "canaille"
pytestmark = [
    pytest.mark.xdist_group("canaille"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not PROGRAM.exists() and not os.environ.get("CI"),
        reason="Canaille is not installed: run `make test-clients`",
    ),
]

SETTINGS = """
SECRET_KEY = "only for tests"
SERVER_NAME = "127.0.0.1:{port}"

[CANAILLE_SQL]
DATABASE_URI = "sqlite:///{folder}/canaille.sqlite"

[CANAILLE_OIDC]
DYNAMIC_CLIENT_REGISTRATION_OPEN = true

[CANAILLE_HYPERCORN]
BIND = ["127.0.0.1:{port}"]
CERTFILE = "{folder}/certificate"
KEYFILE = "{folder}/key"
WORKERS = 0
"""
PASSWORD = "a passphrase at canaille"
PEOPLE = {
    "nina": "nina@stark.example",
    "otto": "otto@stark.example",
    "eve": "eve@elsewhere.example",
}
ADMINS = ("nina", "eve")
ORGANIZATION = f"""
from django.contrib.auth.models import User
from django.utils import timezone
from accounts.models import Member, Organization
from accounts.sign_in.models import EmailDomain
row = Organization.objects.create(name="Stark")
owner = User.objects.create_user("pepper", password="{PASSPHRASE}")
Member.objects.create(organization=row, user=owner, role="owner")
EmailDomain.objects.create(organization=row, domain="stark.example", approved_at=timezone.now())
print(row.pk)
"""


class Canaille:
    """A process of Canaille, with a database and a certificate of its own."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.log, settings = make_certificate(folder), folder / "log", folder / "settings"
        port = free_port()
        settings.write_text(SETTINGS.format(port=port, folder=folder))
        self.issuer = f"https://127.0.0.1:{port}"
        self.settings = {"CANAILLE_CONFIG": str(settings)}

    @contextmanager
    def running(self) -> Iterator["Canaille"]:
        """Serve until the end of the block."""
        with running([str(PROGRAM), "run"], self._answers, self.log, **self.settings):
            yield self

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.issuer}/login", verify=str(self.certificate), timeout=5).ok
        except requests.RequestException:
            return False

    def create(self, *words: str) -> None:
        """Create a person or a group with Canaille's command."""
        command = [str(PROGRAM), "create", *words, "--quiet"]
        environment = os.environ | self.settings
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def register(self, callback: str) -> tuple[str, str]:
        """Register a client that may send people back to this URL; return its id and its secret."""
        client = {
            "client_name": "chatapi",
            "redirect_uris": [callback],
            "grant_types": ["authorization_code"],
            "response_types": ["code"],
            "scope": "openid profile email groups",
            "token_endpoint_auth_method": "client_secret_post",
        }
        url = f"{self.issuer}/oauth/register"
        answer = requests.post(url, json=client, verify=str(self.certificate), timeout=10)
        assert answer.ok, answer.text
        made = answer.json()
        return made["client_id"], made["client_secret"]


@pytest.fixture(scope="module")
def canaille(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaille]:
    """Run Canaille with its people."""
    with Canaille(tmp_path_factory.mktemp("canaille")).running() as canaille:
        for name, address in PEOPLE.items():
            identity = ("--user-name", name, "--family-name", name, "--emails", address)
            canaille.create("user", *identity, "--password", PASSWORD)
        members = [word for name in ADMINS for word in ("--members", name)]
        canaille.create("group", "--display-name", "llm-admins", *members)
        yield canaille


@pytest.fixture(scope="module")
def console(installation: Installation, canaille: Canaille, browser: Browser) -> Iterator[str]:
    """Start another web process, in which an owner enters Canaille; yield the console's URL."""
    with installation.another_web(
        CHATAPI_OIDC_PRIVATE_ADDRESSES="on", SSL_CERT_FILE=str(canaille.certificate)
    ) as service:
        # A name that is not Canaille's: the two are different sites to a browser.
        console = f"http://localhost:{service.port}/console"
        page = browser.new_page()
        page.goto(f"{console}/{service.shell(ORGANIZATION)}/settings/sign-in")
        enter(page, "pepper", PASSPHRASE)
        page.get_by_label("Extra scopes").fill("groups")
        enter_provider(page, canaille.issuer, canaille.register, "llm-admins = admin")
        page.close()
        yield console


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a browser that trusts Canaille's certificate."""
    context = browser.new_context(ignore_https_errors=True)
    yield context.new_page()
    context.close()


def begin(page: Page, console: str, name: str) -> None:
    """Go from the console to Canaille, and enter the user name there."""
    page.goto(f"{console}/")
    page.get_by_label("E-mail address or user name").fill("somebody@stark.example")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="with the identity provider of Stark").click()
    page.get_by_label("Login", exact=True).fill(name)
    page.get_by_role("button", name="Continue").click()


def sign_in(page: Page, password: str) -> None:
    """Enter the password at Canaille."""
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Sign in").click()


def test_a_password_leads_into_the_console_with_the_role_of_the_group(page: Page, console: str) -> None:
    begin(page, console, "nina")
    sign_in(page, PASSWORD)
    page.get_by_role("button", name="Accept").click()
    expect(page.get_by_role("heading", name="Start", exact=True)).to_be_visible()
    page.get_by_role("link", name="Members").click()
    expect(page.get_by_role("row", name=re.compile("nina@stark.example.*you"))).to_contain_text("admin")


def test_a_wrong_password_signs_nobody_in(page: Page, console: str) -> None:
    begin(page, console, "nina")
    sign_in(page, "a wrong passphrase")
    expect(page.get_by_text("Login failed. Please check your information.")).to_be_visible()
    expect_visitor(page, console)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("otto", "None of your groups has a place in Stark, and you have no open invitation."),
        ("eve", "Stark may not vouch for eve@elsewhere.example: its domain is not approved."),
    ],
)
def test_people_of_no_group_or_another_domain_are_refused(
    page: Page, console: str, name: str, reason: str
) -> None:
    begin(page, console, name)
    sign_in(page, PASSWORD)
    page.get_by_role("button", name="Accept").click()
    expect(page.get_by_role("alert")).to_contain_text(reason)
    expect_visitor(page, console)


def expect_visitor(page: Page, console: str) -> None:
    """Fail if the console takes the browser for a person."""
    page.goto(f"{console}/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
