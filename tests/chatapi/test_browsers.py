"""The names of browsers, which an account's sessions show."""

import pytest

from chatapi.console.browsers import browser_of

WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko)"


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0", "Firefox on Linux"),
        (f"Windows NT 10.0; Win64; x64) {WEBKIT} Chrome/142.0.0.0 Safari/537.36", "Chrome on Windows"),
        (f"Windows NT 10.0) {WEBKIT} Chrome/142.0 Safari/537.36 Edg/142.0", "Edge on Windows"),
        (f"Macintosh; Intel Mac OS X 10_15_7) {WEBKIT} Version/18.1 Safari/605.1.15", "Safari on macOS"),
        (f"iPhone; CPU iPhone OS 18_1 like Mac OS X) {WEBKIT} CriOS/131.0 Safari/604.1", "Chrome on iOS"),
        (f"Linux; Android 14) {WEBKIT} SamsungBrowser/27.0 Safari/537.36", "Samsung Internet on Android"),
        (f"X11; CrOS x86_64) {WEBKIT} Chrome/142.0 Safari/537.36 OPR/120.0", "Opera on ChromeOS"),
    ],
)
def test_browsers_have_names(user_agent: str, name: str) -> None:
    assert browser_of(f"Mozilla/5.0 ({user_agent}") == name


@pytest.mark.parametrize("user_agent", ["curl/8.11.0", "Mozilla/5.0 (X11; Linux x86_64)", ""])
def test_what_is_no_known_browser_stays_as_it_is(user_agent: str) -> None:
    assert browser_of(user_agent) == user_agent
