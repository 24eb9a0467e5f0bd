"""The page of prepaid credit in a browser: paying at Stripe and coming back, on a phone and in the dark; and
a founder's way to the first request that costs something.
"""

import re
import time
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types
from openai import OpenAI
from playwright.sync_api import Browser, Page, expect

from tests import fake_stripe, mail_server
from tests.browser.conftest import PASSPHRASE, PEOPLE, sign_in, watched
from tests.browser.visiting import EVERYTHING, shot
from tests.fake_stripe import Stripe
from tests.installation import Installation, wait_for
from tests.mail_server import Mailbox

pytestmark = [pytest.mark.xdist_group("credit"), pytest.mark.timeout(180)]

PHONE = {"width": 390, "height": 844}
TWO_MINUTES_S = 120
REFUSED = "Failed to load resource: the server responded with a status of 400 (Bad Request)"
BILL = """
from accounts.models import Organization
from usage.payment import metered_usage
metered_usage.bill(Organization.objects.get(name="Globex"), "cus_fake1")
"""


@pytest.fixture(scope="module")
def stripe() -> Iterator[Stripe]:
    with fake_stripe.serving() as fake:
        yield fake


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Mailbox]:
    with mail_server.serving() as mailbox:
        yield mailbox


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, stripe: Stripe, mailbox: Mailbox
) -> Iterator[Installation]:
    """Start an installation that takes payments, and lets everybody sign up."""
    with fake_stripe.installation_with(
        stripe,
        tmp_path_factory.mktemp("credit"),
        CHATAPI_SIGN_UP="open",
        CHATAPI_EMAIL_URL=f"smtp://127.0.0.1:{mailbox.port}",
        CHATAPI_EMAIL_FROM="chatapi@example.com",
    ) as installation:
        installation.shell(PEOPLE)
        yield installation


@pytest.fixture
def page(browser: Browser, installation: Installation, stripe: Stripe) -> Iterator[Page]:
    """Open a page that may log no error, and asks no other server than Stripe's."""
    context = browser.new_context()
    page = watched(context, installation)
    yield page
    complaints: list[str] = page.complaints  # type: ignore[attr-defined]
    assert [each for each in complaints if not each.startswith(stripe.url)] == []
    context.close()


def complaints(page: Page) -> list[str]:
    """Return what axe finds, light and dark, wide and on a phone, and whether the page is too wide."""
    found = []
    for size in ({"width": 1280, "height": 720}, PHONE):
        page.set_viewport_size(size)  # type: ignore[arg-type]  # playwright's own type is a private one
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            violations = Axe().run(page, options=EVERYTHING).response["violations"]
            found += [f"{scheme}: {each['id']}: {each['nodes'][0]['html'][:160]}" for each in violations]
        width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found += [f"{width} px too wide"] if width > 0 else []
        shot(page, "credit")
    return found


def pay(page: Page, installation: Installation, stripe: Stripe) -> None:
    """Pay $50 from the page Credit, and come back to it once the payment is booked."""
    page.get_by_role("button", name="$50", exact=True).click()
    page.wait_for_url(f"{stripe.url}/pay/*")  # the policy of the form's page allows it
    session_id = page.url.rpartition("/")[2]
    stripe.pay(session_id)
    page.goto(stripe.sessions[session_id]["success_url"])
    expect(page.get_by_text("Your credit is added when Stripe has received")).to_be_visible()
    body, signature = stripe.webhook("checkout.session.completed", stripe.sessions[session_id])
    answer = page.request.post(
        f"{installation.url}/stripe/webhook",
        data=body,
        headers={"content-type": "application/json", "stripe-signature": signature},
    )
    assert answer.status == 200
    for _ in range(50):
        if page.get_by_text("The payment is booked.").is_visible():
            break
        page.wait_for_timeout(200)
        page.reload()
    expect(page.get_by_text("The payment is booked.")).to_be_visible()


def test_from_sign_up_to_the_first_paid_request_in_two_minutes(
    page: Page, installation: Installation, stripe: Stripe, mailbox: Mailbox
) -> None:
    began_at = time.monotonic()
    page.goto(f"{installation.url}/console/")
    page.get_by_role("link", name="Sign up").click()
    page.get_by_label("E-mail address").fill("fay@founders.example")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Check your mail")).to_be_visible()
    wait_for(lambda: bool(mailbox.messages), "the mail of the sign-up")
    link = re.search(r"^http://\S+", mailbox.messages[-1].get_content(), re.MULTILINE)
    assert link is not None
    page.goto(link[0])
    page.get_by_label("Password").fill(PASSPHRASE)
    page.get_by_label("Name of your organization").fill("Founders")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("link", name="New project").click()
    page.get_by_label("Name").fill("website")
    page.keyboard.press("Enter")
    page.get_by_label("Name").fill("backend")
    page.get_by_role("button", name="Create the key").click()
    secret = page.get_by_label("API key", exact=True).input_value()
    page.locator("#no-credit").get_by_role("link", name="Credit").click()
    pay(page, installation, stripe)
    with OpenAI(base_url=f"{installation.url}/v1", api_key=secret, max_retries=0) as client:
        answer = client.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": "Hello!"}]
        )
    assert answer.choices[0].message.content
    page.get_by_role("link", name="Requests").click()
    expect(page.locator("td[data-label=Cost]")).to_contain_text("$0.0000", timeout=15_000)
    assert time.monotonic() - began_at < TWO_MINUTES_S


def test_credit_is_paid_at_stripe(page: Page, installation: Installation, stripe: Stripe) -> None:
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/")
    page.get_by_role("link", name="Tests").first.click()
    page.get_by_role("link", name="Credit").click()
    expect(page.get_by_text("No payments yet.")).to_be_visible()
    assert complaints(page) == []

    page.set_viewport_size({"width": 1280, "height": 720})
    page.get_by_label("Another amount in USD").fill("4")
    page.get_by_role("button", name="Pay this amount").click()
    expect(page.get_by_text("Pay $5.00 to $5,000.00, in whole cents.")).to_be_visible()
    page.complaints.remove(REFUSED)  # type: ignore[attr-defined]
    pay(page, installation, stripe)
    expect(page.get_by_role("link", name="Receipt of")).to_be_visible()
    assert complaints(page) == []


def test_an_organization_that_is_billed_afterwards_has_nothing_to_pay(
    page: Page, installation: Installation
) -> None:
    installation.shell(BILL)
    sign_in(page, installation, "ada")
    page.get_by_role("link", name="Credit").click()
    expect(page.get_by_text("There is nothing to pay in advance.")).to_be_visible()
    expect(page.get_by_role("button", name="$50", exact=True)).to_be_hidden()
    assert complaints(page) == []
