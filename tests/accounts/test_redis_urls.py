"""URLs of Redis that name sentinels, and lists of them."""

import pytest
from pytest_django import Settings

from accounts.redis_urls import sentinel_urls, stream_urls, without_secrets


@pytest.mark.parametrize(
    ("url", "sentinels", "primary"),
    [
        ("redis+sentinel://a/main", ["redis://a:26379?"], "redis://main/0?"),
        (
            "redis+sentinel://user:p%40w%2C@a:1,b_2,10.0.0.3:3/main.A-1_x/7",
            ["redis://a:1?", "redis://b_2:26379?", "redis://10.0.0.3:3?"],
            "redis://user:p%40w%2C@main.A-1_x/7?",
        ),
        (
            "redis+sentinel://[::1],[2001:db8::2]:2/main/?health_check_interval=3",
            ["redis://[::1]:26379?", "redis://[2001:db8::2]:2?"],
            "redis://main/0?health_check_interval=3",
        ),
        (
            "rediss+sentinel://:pw@a/main?sentinel_username=u&sentinel_password=p%40%26&ssl_ca_certs=/ca",
            ["rediss://u:p%40%26@a:26379?ssl_ca_certs=%2Fca"],
            "rediss://:pw@main/0?ssl_ca_certs=%2Fca",
        ),
        ("redis+sentinel://a/main?sentinel_password=p", ["redis://:p@a:26379?"], "redis://main/0?"),
    ],
)
def test_a_url_names_sentinels_and_what_they_are_asked_for(
    url: str, sentinels: list[str], primary: str
) -> None:
    found = sentinel_urls(url)
    assert found
    assert (list(found.sentinels), found.primary) == (sentinels, primary)
    assert found.has_tls == url.startswith("rediss")


@pytest.mark.parametrize("url", ["redis://a:6379/0", "unix:///run/a.sock", "sentinel://a:26379", "a", ""])
def test_other_urls_name_none(url: str) -> None:
    assert sentinel_urls(url) is None


def test_no_secret_is_shown() -> None:
    url = "redis+sentinel://user:hunter2@a:26379,b:26379/main/0?sentinel_password=hunter2"
    assert repr(sentinel_urls(url)) == "SentinelURLs(name='main')"
    assert without_secrets(url) == "redis+sentinel://a:26379,b:26379/main/0"


@pytest.mark.parametrize(
    "urls",
    [
        ["redis+sentinel://a,b:1,c/main", "redis://d", "rediss+sentinel://:p%2Fw@e,f/other/1", "unix:///g"],
        ["redis://d", "redis+sentinel://a/main", "redis+sentinel://a/other"],
        ["redis+sentinel://a,,b/main", "redis://d"],
        ["redis://d", "e", ""],
    ],
)
def test_the_commas_between_sentinels_end_no_url_of_a_list(settings: Settings, urls: list[str]) -> None:
    for comma in (",", " , "):
        settings.STREAMS_URL = comma.join(urls)
        assert stream_urls() == urls
