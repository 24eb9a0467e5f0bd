"""Clients of the service: streams, a load of streams, and an operator who signs in."""

import http.cookiejar
import json
import re
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from by_hand.machine import PASSWORD, expect, fail

KEY = Path("/root/key")
TOKENS = 20
"""The length of each answer."""
TOKEN_MS = 40


@dataclass(frozen=True)
class Site:
    """A proxy's site: its name, the certificate that clients trust, and the path of the service."""

    host: str
    certificate: Path
    prefix: str = ""
    redirects: bool = True
    """Whether the site redirects from http to https."""


NGINX = Site("chat.example.com", Path("/etc/ssl/chat.example.com.pem"))


def stream(site: Site = NGINX) -> None:
    """Stream an answer through the proxy; exit unless the proxy passes the tokens on at once."""
    connection = connect(site)
    pieces = stream_on(connection, site.prefix)
    connection.close()
    if pieces < TOKENS / 2:
        fail(f"{TOKENS} tokens came in {pieces} pieces: the proxy has buffered them")


def connect(site: Site = NGINX) -> HTTPSConnection:
    """Return a connection to the proxy that verifies its certificate."""
    context = ssl.create_default_context(cafile=str(site.certificate))
    return HTTPSConnection(site.host, timeout=60, context=context)


def stream_on(connection: HTTPConnection, prefix: str = "") -> int:
    """Return the number of pieces of an answer; raises `ValueError` unless the answer is complete."""
    return read_stream(begin_stream(connection, prefix))


def begin_stream(connection: HTTPConnection, prefix: str = "", tokens: int = TOKENS) -> HTTPResponse:
    """Send a request; return its answer, which has begun."""
    prompt = {"role": "user", "content": f"[sandbox tokens={tokens} delay_ms={TOKEN_MS}]"}
    body = {"model": "sandbox", "stream": True, "messages": [prompt]}
    headers = {"Authorization": f"Bearer {KEY.read_text()}", "Content-Type": "application/json"}
    connection.request("POST", f"{prefix}/v1/chat/completions", json.dumps(body), headers)
    return connection.getresponse()


def read_stream(answer: HTTPResponse) -> int:
    """Return the number of pieces of the answer; raises `ValueError` unless it is complete."""
    pieces = []
    while piece := answer.read1():
        pieces.append(piece)
    text = b"".join(pieces).decode()
    if answer.status != 200 or not text.rstrip().endswith("data: [DONE]") or '"error"' in text:
        raise ValueError(f"{answer.status} {text[-300:]}")
    return len(pieces)


def streams(site: Site = NGINX) -> bool:
    """Return whether a request streams a whole answer."""
    try:
        stream(site)
    except (OSError, HTTPException, ValueError):
        return False
    return True


@contextmanager
def load(site: Site = NGINX) -> Iterator[None]:
    """Stream all the time on eight connections; exit if one request fails."""
    stop, sent, failures = threading.Event(), [0], list[str]()

    def send() -> None:
        connection = connect(site)
        while not stop.is_set():
            try:
                stream_on(connection, site.prefix)
            except (OSError, HTTPException, ValueError) as problem:
                failures.append(f"{type(problem).__name__} {problem}")
                connection.close()
            sent[0] += 1
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures or sent[0] < 20:
        fail(f"{len(failures)} of {sent[0]} requests failed: {failures[:3]}")
    print(f"    {sent[0]} requests", flush=True)


def sign_in(site: Site = NGINX) -> None:
    """Sign in as the operator, and check that the cookies are for https only."""
    _, cookies = signed_in(site)
    if not {"sessionid", "csrftoken"} <= {each.name for each in cookies if each.secure}:
        fail(f"cookies without Secure: {[each.name for each in cookies]}")


def new_browser(site: Site = NGINX) -> tuple[urllib.request.OpenerDirector, http.cookiejar.CookieJar]:
    """Return a browser that trusts the site's certificate, and its cookies."""
    cookies = http.cookiejar.CookieJar()
    context = ssl.create_default_context(cafile=str(site.certificate))
    browser = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(cookies), urllib.request.HTTPSHandler(context=context)
    )
    return browser, cookies


def signed_in(site: Site = NGINX) -> tuple[urllib.request.OpenerDirector, http.cookiejar.CookieJar]:
    """Return a browser in which the operator has signed in, and its cookies."""
    browser, cookies = new_browser(site)
    url, admin = f"https://{site.host}{site.prefix}/console/sign-in", f"{site.prefix}/admin/"
    entrance = url.replace("https:", "http:") if site.redirects else url
    page = browser.open(f"{entrance}?next={admin}", timeout=30)
    expect(url, page.url)
    answer = submit(browser, page, {"username": "op", "password": PASSWORD, "next": admin})
    expect(f"https://{site.host}{admin}", answer.url)
    return browser, cookies


def submit(browser: urllib.request.OpenerDirector, page: Any, fields: dict[str, str]) -> Any:
    """Return the answer to the page's form with these fields."""
    [token] = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page.read().decode()))
    form = urlencode({"csrfmiddlewaretoken": token} | fields).encode()
    return browser.open(urllib.request.Request(page.url, form, {"Referer": page.url}), timeout=30)
