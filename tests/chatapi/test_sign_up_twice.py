"""Two presses of "Start", as a double click or a browser that repeats a request sends them, to a real server:
both lead to the first page of the one organization that they made.
"""

import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from uuid import uuid4

import httpx
import pytest

from tests.chatapi.signing_in import PASSWORD
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("sign up twice"), pytest.mark.timeout(240)]
SIGNED = """
from accounts.sign_in import email_addresses
from chatapi.console.sign_up import PURPOSE
print(email_addresses.sign(PURPOSE, {"email": "%s"}))
"""


@pytest.fixture(scope="module")
def service(installation: Installation) -> Iterator[Installation]:
    """Start a web process that lets everybody sign up."""
    mail = {"CHATAPI_EMAIL_URL": "smtp://127.0.0.1:9", "CHATAPI_EMAIL_FROM": "chatapi@example.com"}
    with installation.another_web(CHATAPI_SIGN_UP="open", **mail) as service:
        yield service


class Visitor:
    """A browser on the page of a mailed link, with the form filled in."""

    def __init__(self, service: Installation) -> None:
        name = uuid4().hex[:8]
        email = f"{name}@globex.example"
        self.url = f"{service.url}/console/sign-up/{service.shell(SIGNED % email)}"
        page = httpx.get(self.url)
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        self.form = {"csrfmiddlewaretoken": token, "password": PASSWORD, "name": f"Globex {name}"}
        self.cookies = dict(page.cookies)

    def press(self) -> str:
        """Send the form, with the cookies that the page came with; return the path that this leads to."""
        with httpx.Client(cookies=self.cookies, follow_redirects=True, timeout=20) as browser:
            answer = browser.post(self.url, data=self.form)
            assert answer.status_code == 200, answer.text
            return answer.url.path


def test_a_press_after_the_first_one_was_answered_leads_to_the_same_page(service: Installation) -> None:
    visitor = Visitor(service)
    first, second = visitor.press(), visitor.press()
    assert re.fullmatch(r"/console/\d+/start", first)
    assert second == first


def test_a_press_before_the_first_one_is_saved_leads_to_the_same_page(service: Installation) -> None:
    visitor = Visitor(service)
    before = attempts(service)
    with ThreadPoolExecutor(2) as pool:
        with nobody_saves(service):
            presses = [pool.submit(visitor.press) for _ in range(2)]
            wait_for(lambda: attempts(service) == before + 2, "both presses on their way to the database")
        first, second = (press.result() for press in presses)
    assert re.fullmatch(r"/console/\d+/start", first)
    assert second == first


@contextmanager
def nobody_saves(service: Installation) -> Iterator[None]:
    """Make all others wait who save a person, inside the block."""
    if url := service.environment.get("DATABASE_URL"):
        import psycopg

        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE auth_user IN EXCLUSIVE MODE")
            yield
        return
    with closing(sqlite3.connect(service.folder / "chatapi.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def attempts(service: Installation) -> int:
    """Return how many attempts to sign in were counted from this machine: more than of any one name."""
    with service.open_valkey() as redis:
        counts = [int(redis.get(key) or 0) for key in redis.keys("chatapi:sign-in:*")]
        return max(counts, default=0)
