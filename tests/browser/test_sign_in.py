"""Signing up and in as people do it: with mail in an SMTP server, passkeys of Chromium's virtual device, and
an organization's own identity provider.
"""

import re
import time
from collections.abc import Iterator
from email.message import Message
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types
from openai import OpenAI
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.browser.conftest import enter_provider, watched
from tests.chatapi.identity_provider import Provider
from tests.installation import Installation, free_port, wait_for

pytestmark = [pytest.mark.xdist_group("sign in"), pytest.mark.timeout(240)]

PASSPHRASE = "correct horse battery"
PHONE = {"width": 390, "height": 844}
TWO_MINUTES_S = 120
APPROVE = """
from django.utils import timezone
from accounts.models import Organization
from accounts.sign_in.models import EmailDomain
row = Organization.objects.get(name="Pied Piper")
EmailDomain.objects.update_or_create(
    organization=row, domain="piedpiper.example", defaults={"approved_at": timezone.now(), "joins_as": ""}
)
print(row.pk)
"""


class Mailbox(MessageHandler):
    """The mail that an SMTP server has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Message] = []

    def handle_message(self, message: Message) -> None:
        self.taken.append(message)

    def link(self, to: str) -> str:
        """Wait for mail to this address; return the link of the newest one."""

        def newest() -> Message | None:
            return next((mail for mail in reversed(self.taken) if mail["to"] == to), None)

        wait_for(lambda: newest() is not None, f"mail to {to}")
        mail = newest()
        assert mail is not None
        body = mail.get_payload(decode=True)
        assert isinstance(body, bytes)
        (url,) = re.findall(r"^http://\S+", body.decode(), re.MULTILINE)
        self.taken.remove(mail)
        return str(url)


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Mailbox]:
    """Run an SMTP server."""
    mailbox = Mailbox()
    server = Controller(mailbox, hostname="127.0.0.1", port=free_port())
    server.start()
    mailbox.url = f"smtp://127.0.0.1:{server.port}"  # type: ignore[attr-defined]
    yield mailbox
    server.stop()


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """Run an identity provider."""
    with Provider(tmp_path_factory.mktemp("provider")).running() as provider:
        yield provider


@pytest.fixture(scope="module")
def service(installation: Installation, mailbox: Mailbox, provider: Provider) -> Iterator[Installation]:
    """Start another web process, which sends mail and lets everybody sign up."""
    with installation.another_web(
        CHATAPI_SIGN_UP="open",
        CHATAPI_EMAIL_URL=mailbox.url,  # type: ignore[attr-defined]
        CHATAPI_EMAIL_FROM="chatapi@example.com",
        CHATAPI_OIDC_PRIVATE_ADDRESSES="on",
        SSL_CERT_FILE=str(provider.certificate),
    ) as service:
        yield service


def at(service: Installation, path: str) -> str:
    """Return the URL under a name: passkeys need one, and are allowed on localhost without HTTPS."""
    return f"http://localhost:{service.port}{path}"


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], ignore_https_errors=True)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open a page that may log no error."""
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if is_our_error(message) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert errors == []


def is_our_error(message: ConsoleMessage) -> bool:
    """Return whether it is an error of our own pages; the provider's want a style sheet from elsewhere."""
    return message.type == "error" and urlsplit(message.location["url"]).scheme == "http"


@pytest.fixture
def authenticator(page: Page, context: BrowserContext) -> Any:
    """Give the page a device that knows its person, such as a phone with a fingerprint reader."""
    session = context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    return session.send("WebAuthn.addVirtualAuthenticator", {"options": options})["authenticatorId"]


def sign_up(page: Page, service: Installation, mailbox: Mailbox, address: str, organization: str) -> None:
    """Sign up in the browser, by mail, to the Start page."""
    page.goto(at(service, "/console/"))
    page.get_by_role("link", name="Sign up").click()
    page.get_by_label("E-mail address").fill(address)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Check your mail")).to_be_visible()
    page.goto(mailbox.link(address).replace("127.0.0.1", "localhost"))
    page.get_by_label("Password").fill(PASSPHRASE)
    page.get_by_label("Name of your organization").fill(organization)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Start", exact=True)).to_be_visible()


def sign_out(page: Page) -> None:
    page.locator(".account summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def sign_in(page: Page, service: Installation, address: str) -> None:
    """Enter address and password."""
    page.goto(at(service, "/console/sign-in"))
    page.get_by_label("E-mail address or user name").fill(address)
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("Password").fill(PASSPHRASE)
    page.get_by_role("button", name="Sign in").click()


def flaws(page: Page) -> list[str]:
    """Return what axe finds wrong on the page, on a screen and on a phone, in light and in dark."""
    found = []
    for size, scheme in (({"width": 1280, "height": 800}, "light"), (PHONE, "dark")):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        results = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        found += [f"{each['id']}: {each['nodes'][0]['html']}" for each in results]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{page.url} is wider than the screen")
    page.set_viewport_size({"width": 1280, "height": 800})
    return found


def test_from_sign_up_to_the_first_request_in_two_minutes(
    page: Page, service: Installation, mailbox: Mailbox
) -> None:
    began_at = time.monotonic()
    sign_up(page, service, mailbox, "ada@globex.example", "Globex Inc")
    page.get_by_role("link", name="New project").click()
    page.get_by_label("Name").fill("website")
    page.keyboard.press("Enter")
    page.get_by_label("Name").fill("backend")
    page.get_by_label("Test key").check()
    page.get_by_role("button", name="Create the key").click()
    page.get_by_role("button", name="Copy", exact=True).first.click()
    secret = page.evaluate("navigator.clipboard.readText()")
    with OpenAI(base_url=f"{service.url}/openai/v1", api_key=secret, max_retries=0) as client:
        answer = client.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": "Hello!"}]
        )
    assert answer.choices[0].message.content
    assert time.monotonic() - began_at < TWO_MINUTES_S


def test_a_passkey_signs_in_alone(
    page: Page, service: Installation, mailbox: Mailbox, authenticator: Any
) -> None:
    sign_up(page, service, mailbox, "pat@passkeys.example", "Passkeys")
    page.goto(at(service, "/console/account"))
    page.get_by_role("link", name="Add a passkey").click()
    page.get_by_label("Password").fill(PASSPHRASE)
    page.get_by_role("button", name="Continue").click()
    assert flaws(page) == []
    page.get_by_label("Name").fill("Laptop")
    page.get_by_role("button", name="Create the passkey").click()
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    page.goto(at(service, "/console/account"))
    expect(page.get_by_text("Laptop").first).to_be_visible()
    assert flaws(page) == []
    page.goto(at(service, "/console/"))
    sign_out(page)
    page.get_by_role("button", name="Sign in with a passkey").click()
    expect(page.get_by_role("heading", name="Start", exact=True)).to_be_visible()
    sign_out(page)
    # It is also the second factor of the password.
    sign_in(page, service, "pat@passkeys.example")
    expect(page.get_by_role("heading", name="Second factor")).to_be_visible()
    assert flaws(page) == []
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("heading", name="Start", exact=True)).to_be_visible()
    page.goto(at(service, "/console/account"))
    page.get_by_role("link", name="Remove Laptop").click()
    page.get_by_role("link", name="Use a passkey").click()
    assert flaws(page) == []
    page.get_by_role("button", name="Use a passkey").click()
    page.get_by_role("button", name="Remove the passkey").click()
    expect(page.get_by_text("Laptop")).to_have_count(0)


def test_an_app_of_codes_is_set_up_and_used(page: Page, service: Installation, mailbox: Mailbox) -> None:
    sign_up(page, service, mailbox, "tom@codes.example", "Codes")
    page.goto(at(service, "/console/account"))
    page.get_by_role("link", name="Set up an app").click()
    page.get_by_label("Password").fill(PASSPHRASE)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".qr svg")).to_be_visible()
    assert flaws(page) == []
    secret = page.get_by_label("Or type this key there").input_value()

    def code(steps: int = 0) -> str:
        return str(format_hotp_value(hotp_value(secret, int(time.time()) // 30 + steps)))

    page.get_by_label("Authenticator code").fill(code())
    page.get_by_role("button", name="Turn the codes on").click()
    assert flaws(page) == []
    recovery = page.locator("#recovery-codes").inner_text().split()[0]
    page.goto(at(service, "/console/"))
    for answer in (code(1), recovery):
        sign_out(page)
        sign_in(page, service, "tom@codes.example")
        page.get_by_label("Code of your app").fill(answer)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Start", exact=True)).to_be_visible()


def test_a_forgotten_password_and_an_invitation_come_by_mail(
    page: Page, browser: Browser, service: Installation, mailbox: Mailbox
) -> None:
    sign_up(page, service, mailbox, "olga@owners.example", "Owners")
    page.get_by_role("link", name="Members").click()
    page.get_by_role("link", name="Invite", exact=True).click()
    page.get_by_label("E-mail address").fill("ivan@owners.example")
    page.get_by_role("button", name="Invite").click()
    expect(page.get_by_text("The invitation was mailed to ivan@owners.example")).to_be_visible()
    other = browser.new_context()
    invited = other.new_page()
    invited.goto(mailbox.link("ivan@owners.example").replace("127.0.0.1", "localhost"))
    expect(invited.get_by_text("olga@owners.example invited you to Owners as viewer")).to_be_visible()
    assert flaws(invited) == []
    for label in ("New password:", "New password confirmation:"):
        invited.get_by_label(label.rstrip(":"), exact=True).fill(PASSPHRASE)
    invited.get_by_role("button", name="Set the password").click()
    expect(invited.get_by_role("heading", name="Start", exact=True)).to_be_visible()
    sign_out(invited)
    invited.get_by_label("E-mail address or user name").fill("ivan@owners.example")
    invited.keyboard.press("Enter")
    invited.get_by_role("link", name="Forgotten your password?").click()
    invited.get_by_label("E-mail address").fill("ivan@owners.example")
    assert flaws(invited) == []
    invited.keyboard.press("Enter")
    expect(invited.get_by_role("heading", name="Check your mail")).to_be_visible()
    invited.goto(mailbox.link("ivan@owners.example").replace("127.0.0.1", "localhost"))
    expect(invited.get_by_role("heading", name="Choose a password")).to_be_visible()
    # A person who was removed is invited again, and accepts with the account that they have.
    page.get_by_role("link", name="Members", exact=True).click()
    page.get_by_role("button", name="Remove ivan@owners.example").click()
    page.get_by_role("button", name="Really remove?").click()
    expect(page.get_by_text("ivan@owners.example is no longer a member of Owners.")).to_be_visible()
    page.get_by_role("link", name="Invite", exact=True).click()
    page.get_by_label("E-mail address").fill("ivan@owners.example")
    page.get_by_role("button", name="Invite").click()
    expect(page.get_by_text("The invitation was mailed to ivan@owners.example")).to_be_visible()
    invited.goto(mailbox.link("ivan@owners.example").replace("127.0.0.1", "localhost"))
    assert flaws(invited) == []
    invited.get_by_role("link", name="sign in to it").click()
    invited.get_by_label("E-mail address or user name").fill("ivan@owners.example")
    invited.keyboard.press("Enter")
    invited.get_by_label("Password").fill(PASSPHRASE)
    invited.keyboard.press("Enter")
    expect(invited.get_by_text("You are signed in as ivan@owners.example.")).to_be_visible()
    assert flaws(invited) == []
    invited.get_by_role("button", name="Join").click()
    expect(invited.get_by_text("You are now viewer of Owners.")).to_be_visible()
    other.close()


def test_an_organizations_people_sign_in_at_its_provider(
    page: Page, browser: Browser, service: Installation, mailbox: Mailbox, provider: Provider
) -> None:
    sign_up(page, service, mailbox, "owen@piedpiper.example", "Pied Piper")
    organization = service.shell(APPROVE)
    page.goto(at(service, f"/console/{organization}/settings"))
    page.get_by_role("link", name="Sign-in settings").click()
    assert flaws(page) == []
    enter_provider(page, provider.issuer, provider.register, "admins = admin\nowners = owner")

    provider.knows("owen", email="owen@piedpiper.example", email_verified=True, groups=["owners"])
    provider.knows("nina", email="nina@piedpiper.example", email_verified=True, groups=["admins"])
    other = browser.new_context(ignore_https_errors=True)
    owen = other.new_page()
    owen.goto(at(service, "/console/sign-in"))
    owen.get_by_label("E-mail address or user name").fill("owen@piedpiper.example")
    owen.keyboard.press("Enter")
    owen.get_by_role("link", name="with the identity provider of Pied Piper").click()
    at_the_provider(owen, provider, "owen")
    expect(owen.get_by_role("heading", name="Start", exact=True)).to_be_visible()
    other.close()

    page.reload()
    page.get_by_label("Required").check()
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text("The identity provider is saved.")).to_be_visible()
    sign_out(page)
    page.get_by_label("E-mail address or user name").fill("nina@piedpiper.example")
    page.keyboard.press("Enter")
    at_the_provider(page, provider, "nina")
    expect(page.get_by_role("heading", name="Start", exact=True)).to_be_visible()
    page.get_by_role("link", name="Members").click()
    expect(page.get_by_role("row", name=re.compile("nina@piedpiper.example.*you"))).to_contain_text("admin")
    page.goto(at(service, "/console/account"))
    expect(page.get_by_text("with the identity provider of Pied Piper, which requires it")).to_be_visible()


def at_the_provider(page: Page, provider: Provider, sub: str) -> None:
    """Sign in on the provider's own page."""
    page.wait_for_url(lambda url: urlsplit(url).port == provider.port)
    page.locator("input[name=sub]").fill(sub)
    page.keyboard.press("Enter")


def test_the_pages_of_visitors_are_accessible(page: Page, service: Installation) -> None:
    for path in ("/console/sign-in", "/console/sign-up", "/console/password/forgotten"):
        page.goto(at(service, path))
        assert flaws(page) == [], path


def test_visitors_ask_no_other_server(context: BrowserContext, service: Installation) -> None:
    page = watched(context, service)
    page.goto(f"{service.url}/console/sign-in")
    page.get_by_label("E-mail address or user name").fill("nobody")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Password")).to_be_visible()
    assert page.complaints == []  # type: ignore[attr-defined]
