"""Static files are kept by browsers for a year, follow a release, and are compressed, as are pages."""

import contextlib
import gzip
import http.client
import re
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from tests.installation import Installation

# The end of an answer looks at the connection to the database.
pytestmark = pytest.mark.django_db
HASHED = re.compile(r"/static/([0-9a-f]{12})/(.+)")
A_YEAR = "max-age=31536000, public, immutable"
A_MINUTE = "max-age=60, public"
COMPRESSED = {"accept-encoding": "gzip, br"}


def answer(path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    with contextlib.closing(Client().get(path, headers=headers)) as response:
        return response.status_code, {k.lower(): v for k, v in response.items()}, response.getvalue()


def linked(path: str, client: Client | None = None) -> dict[str, str]:
    """Return the URLs of a page's files by their names."""
    html = (client or Client()).get(path).content.decode()
    urls = re.findall(r'(?:src|href)="(/static/[^"]+)"', html)
    assert urls, html
    found = {url: HASHED.fullmatch(url) for url in urls}
    return {match[2] if match else url: url for url, match in found.items()}


@pytest.mark.parametrize("path", ["/", "/docs", "/console/sign-in", "/admin/accounts/apikey/"])
def test_each_file_of_a_page_has_a_hash_and_may_be_kept_for_a_year(admin_client: Client, path: str) -> None:
    for name, url in linked(path, admin_client).items():
        status, headers, body = answer(url)
        assert (status, headers["cache-control"]) == (200, A_YEAR), url
        assert HASHED.fullmatch(url), url
        found = finders.find(name)
        with open(str(found), "rb") as file:
            assert body == file.read(), url


@pytest.mark.parametrize("name", ["console/console.css", "usage/confirm.js", "chatapi/icon.svg"])
def test_a_text_is_compressed_for_clients_that_take_it(name: str) -> None:
    url = linked("/docs")[name]
    _, plain, content = answer(url)
    status, headers, body = answer(url, **COMPRESSED)
    assert (status, headers["content-encoding"], gzip.decompress(body)) == (200, "gzip", content)
    assert (headers["content-length"], headers["cache-control"]) == (str(len(body)), A_YEAR)
    assert headers["content-type"] == plain["content-type"]
    assert plain["vary"] == headers["vary"] == "Accept-Encoding"
    assert plain["etag"] != headers["etag"]
    assert "content-encoding" not in plain


@pytest.mark.parametrize("refusal", ["gzip;q=0", "br, gzip; Q=0.000, *;q=0.5"])
def test_a_client_that_refuses_gzip_gets_none(db: None, refusal: str) -> None:
    for path in ("/docs", linked("/docs")["console/console.css"]):
        for accepted, encoding in ((refusal, None), ("gzip;q=0.5", "gzip"), ("gzip;q=1.0, br;q=0", "gzip")):
            _, headers, _ = answer(path, **{"accept-encoding": accepted})
            assert (headers.get("content-encoding"), headers["vary"]) == (encoding, "Accept-Encoding")


def test_a_font_and_a_part_of_a_file_are_sent_as_they_are() -> None:
    release = next(iter(linked("/docs").values())).split("/")[2]
    font = f"/static/{release}/unfold/fonts/inter/Inter-Bold.woff2"
    _, headers, _ = answer(font, **COMPRESSED)
    assert (headers["cache-control"], headers.get("content-encoding")) == (A_YEAR, None)
    css = linked("/docs")["console/console.css"]
    status, headers, body = answer(css, range="bytes=0-9")
    assert (status, len(body), headers.get("content-encoding")) == (206, 10, None)
    status, headers, body = answer(css, range="bytes=0-9", **COMPRESSED)
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert len(body) > 10


def test_a_file_that_is_known_is_not_sent_again() -> None:
    css = linked("/docs")["console/console.css"]
    _, headers, _ = answer(css, **COMPRESSED)
    status, again, body = answer(css, **{"if-none-match": headers["etag"]}, **COMPRESSED)
    assert (status, again["cache-control"], body) == (304, A_YEAR, b"")
    assert (again["etag"], again["vary"]) == (headers["etag"], "Accept-Encoding")
    assert answer(css, **{"if-none-match": headers["etag"]})[0] == 200


@pytest.mark.parametrize("release", ["0123456789ab/", ""])
def test_another_releases_page_gets_this_releases_file_for_a_minute(release: str) -> None:
    ours = answer(linked("/docs")["console/console.css"])
    status, headers, body = answer(f"/static/{release}console/console.css")
    assert (status, headers["cache-control"], body) == (200, A_MINUTE, ours[2])
    assert answer(f"/static/{release}console/nothing.css")[0] == 404


def test_what_a_file_refers_to_has_the_hash_too() -> None:
    """CSS names fonts and pictures, and modules name modules, relative to themselves."""
    release = next(iter(linked("/docs").values())).split("/")[2]
    for name in ("unfold/css/styles.css", "unfold/fonts/inter/styles.css", "console/playground.js"):
        url = f"/static/{release}/{name}"
        text = answer(url)[2].decode()
        referred = re.findall(
            r"""url\(["']?(?!data:|["'])([^)"'#]+)|^import .* from "([^"]+)";""", text, re.M
        )
        for path in (css or module for css, module in referred):
            target = urljoin(url, path)
            assert HASHED.fullmatch(target), (name, path)
            assert answer(target)[:2][0] == 200, (name, path)
            assert answer(target)[1]["cache-control"] == A_YEAR, (name, path)


def test_every_font_of_the_console_has_a_size_of_its_scale() -> None:
    with open(str(finders.find("console/console.css"))) as file:
        css = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    declared = re.findall(r"[{;\s](font(?:-size)?):\s*([^;}]+)", css)
    assert len(declared) > 40
    scale = r"var\(--(small|normal|large|title)\)"
    allowed = {"font": rf"inherit|{scale}/[\d.]+ .+", "font-size": scale}
    assert [value for name, value in declared if not re.fullmatch(allowed[name], value.strip())] == []


@pytest.mark.parametrize("path", ["/", "/docs/errors", "/console/sign-in", "/admin/", "/nowhere"])
def test_a_page_is_compressed_and_of_another_length_each_time(admin_client: Client, path: str) -> None:
    plain = admin_client.get(path, follow=True)
    answers = [admin_client.get(path, headers=COMPRESSED, follow=True) for _ in range(8)]
    assert {each.headers["content-encoding"] for each in answers} == {"gzip"}
    assert "Accept-Encoding" in plain.headers["vary"]
    assert len(answers[0].content) < len(plain.content)
    assert answers[0].headers["content-security-policy"] == plain.headers["content-security-policy"]
    # BREACH: what a length says of a secret in the page is hidden by a random number of bytes.
    assert len({len(each.content) for each in answers}) > 1


@pytest.mark.parametrize("path", ["/openapi.json", "/docs/errors.md", "/v1/models", "/admin/overview.csv"])
def test_what_is_no_page_is_not_compressed(admin_client: Client, path: str) -> None:
    response = admin_client.get(path, headers=COMPRESSED)
    assert not response.headers["content-type"].startswith("text/html")
    assert "content-encoding" not in response.headers


@pytest.mark.xdist_group("installation")
def test_the_server_sends_streams_as_they_are_and_pages_and_files_compressed(
    installation: Installation,
) -> None:
    body = {"model": "five", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    head = {"authorization": f"Bearer {installation.keys['live']}", "accept-encoding": "gzip"}
    with httpx.Client(base_url=installation.url, headers=head) as client:
        stream = client.post("/v1/chat/completions", json=body)
        assert (stream.status_code, stream.headers.get("content-encoding")) == (200, None)
        page = client.get("/docs")
        assert page.headers["content-encoding"] == "gzip"
        css = next(url for url in re.findall(r'href="(/static/[^"]+)"', page.text) if "console.css" in url)
        sent = client.get(css)
        assert (sent.headers["content-encoding"], sent.headers["cache-control"]) == ("gzip", A_YEAR)
        assert "{" in sent.text
    connection = http.client.HTTPConnection(httpx.URL(installation.url).netloc.decode())
    with contextlib.closing(connection):
        for _ in range(2):  # a body after a head would be taken for the next answer
            connection.request("HEAD", css, headers={"accept-encoding": "gzip"})
            head_only = connection.getresponse()
            assert (head_only.status, head_only.read()) == (200, b"")
            assert head_only.headers["content-length"] == sent.headers["content-length"]


def test_the_admin_and_the_console_hide_the_same_zeros() -> None:
    """Their style sheets repeat the rules, which a change must not reach in one of them only."""
    begin, end = "/* Zeros at the end", ".zeros { display: none; }"
    rules = []
    for name in ("chatapi/admin.css", "console/console.css"):
        text = Path(str(finders.find(name))).read_text()
        start = text.index(begin)
        rules.append(text[start : text.index(end, start)])
    assert rules[0] == rules[1]
    assert rules[0].count("td:nth-child") == 16
