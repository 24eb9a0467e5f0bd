"""Pictures, sounds and files: nothing is ever fetched or unpacked by us, and addresses of the inside go to
nobody.
"""

import socket
import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bad_input.bodies import CHAT, TICKETS, chat, refusal
from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

MIB = 1024 * 1024
MEDIA = (CHAT, TICKETS)


@pytest.fixture(scope="module")
def trap() -> Iterator[socket.socket]:
    """Listen at the URLs of the pictures; no request may arrive."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        yield listener
        with pytest.raises(TimeoutError):
            listener.accept()


def picture(url: str) -> bytes:
    """Return a request with this picture."""
    return chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])


ADDRESSES = [
    "http://127.0.0.1:{port}/a.png",
    "https://127.0.0.1:{port}/a.png",
    "HTTP://127.0.0.1:{port}/a.png",
    "http://localhost:{port}/a.png",
    "http://localhost.:{port}/a.png",
    "http://LOCALHOST:{port}/a.png",
    "http://[::1]:{port}/a.png",
    "http://[::ffff:127.0.0.1]:{port}/a.png",
    "http://[fe80::1%25lo]:{port}/a.png",
    "http://0x7f.1:{port}/a.png",
    "http://0x7f000001:{port}/a.png",
    "http://2130706433:{port}/a.png",
    "http://0177.0.0.1:{port}/a.png",
    "http://127.1:{port}/a.png",
    "http://0:{port}/a.png",
    "http://0.0.0.0:{port}/a.png",
    "http://１２７.0.0.1:{port}/a.png",
    "http://127。0。0。1:{port}/a.png",
    "http://169.254.169.254/latest/meta-data/",
    "http://good.example@127.0.0.1:{port}/a.png",
    "http://user:password@good.example/a.png",
    "http://good.example\\@127.0.0.1:{port}/a.png",
    "http://127.0.0.1:{port}#@good.example/a.png",
    "http://127.0.0.1:{port}?@good.example/a.png",
    "http:///127.0.0.1:{port}/a.png",
    "http:127.0.0.1:{port}/a.png",
    "//127.0.0.1:{port}/a.png",
    "http://good.example:{port}0000/a.png",
    "http://good.example/\r\nHost: 127.0.0.1",
    "http://good.example/ä",
    " http://127.0.0.1:{port}/a.png",
    "http://127.0.0.1:{port}/a.png\n",
    "http://" + "a." * 2_000 + "example/a.png",
    "http://good.example/" + "a" * 10_000,
    "ftp://127.0.0.1:{port}/a.png",
    "gopher://127.0.0.1:{port}/_x",
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "dict://127.0.0.1:{port}/x",
    "jar:http://127.0.0.1:{port}!/",
    "javascript:alert(1)",
    "blob:http://127.0.0.1/x",
    "/etc/passwd",
    "a.png",
    "",
]


@pytest.mark.parametrize("path", MEDIA)
@pytest.mark.parametrize("address", ADDRESSES, ids=lambda address: ascii(address[:40]))
def test_an_address_of_the_inside_is_refused(
    suspect: Client, trap: socket.socket, path: str, address: str
) -> None:
    answer = suspect.send("POST", path, picture(address.replace("{port}", str(trap.getsockname()[1]))))
    assert refusal(answer) == (400, "unsupported_media", "messages[0].content[0].image_url.url")


@pytest.mark.parametrize("path", MEDIA)
@pytest.mark.parametrize(
    "address", ["http://pictures.example/a.png", "https://pictures.example:8443/a.png?size=1"]
)
def test_a_public_address_is_refused_as_no_deployment_allows_it(
    suspect: Client, path: str, address: str
) -> None:
    """Names may resolve to the inside, and servers may redirect there, so it takes a deployment that asks for
    it.
    """
    assert refusal(suspect.send("POST", path, picture(address)))[:2] == (400, "unsupported_media")


NO_DATA = {
    "nothing": "data:",
    "no base64": "data:image/png,AAAA",
    "no type": "data:;base64,AAAA",
    "HTML": "data:text/html;base64,AAAA",
    "SVG in clear": "data:image/svg+xml,<svg onload=alert(1)>",
    "not base64": "data:image/png;base64,<script>",
    "a newline": "data:image/png;base64,AAAA\n",
    "10,000 commas": "data:image/png;base64," + "," * 10_000,
    "10,000 parameters": "data:image/png" + ";a=b" * 10_000 + ";base64,AAAA",
    "a type of 1 MB": "data:image/" + "a" * MIB + ";base64,AAAA",
    "two of them": "data:image/png;base64,AAAAdata:image/png;base64,AAAA",
}


@pytest.mark.parametrize("case", NO_DATA)
def test_data_that_is_no_picture_is_refused(suspect: Client, case: str) -> None:
    assert refusal(suspect.send("POST", CHAT, picture(NO_DATA[case])))[:2] == (400, "unsupported_media")


def test_a_picture_of_more_than_5_mib_is_refused(suspect: Client) -> None:
    assert refusal(suspect.send("POST", CHAT, picture("data:image/png;base64," + "A" * (5 * MIB + 64))))[
        :2
    ] == (
        400,
        "unsupported_media",
    )
    assert refusal(suspect.send("POST", CHAT, picture("data:image/png;base64," + "A" * 30_000_000)))[:2] == (
        413,
        "request_too_large",
    )


def test_a_decompression_bomb_is_passed_on_as_it_is(client: Client, installation: Installation) -> None:
    bomb = b64encode(b"\x89PNG\r\n\x1a\n" + zlib.compress(b"\0" * 50_000_000)).decode()
    url = f"data:image/png;base64,{bomb}"
    assert client.send("POST", CHAT, picture(url)).status == 200
    assert installation.calls("five")[-1]["body"]["messages"][0]["content"][0]["image_url"]["url"] == url


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "a picture that is a string": (
        {"type": "image_url", "image_url": "data:image/png;base64,AAAA"},
        "invalid_type",
    ),
    "a picture without url": ({"type": "image_url", "image_url": {}}, "missing_required_parameter"),
    "a picture of unknown detail": (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "4k"}},
        "invalid_value",
    ),
    "a sound of unknown format": (
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "exe"}},
        "invalid_value",
    ),
    "a sound of 6 MB": (
        {"type": "input_audio", "input_audio": {"data": "A" * 6 * MIB, "format": "wav"}},
        "unsupported_media",
    ),
    "an empty file": ({"type": "file", "file": {}}, "invalid_value"),
    "a file of both kinds": (
        {"type": "file", "file": {"file_id": "a", "file_data": "AAAA"}},
        "invalid_value",
    ),
    "a file's path": ({"type": "file", "file": {"file_path": "/etc/passwd"}}, "invalid_value"),
    "a video": ({"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}, "invalid_value"),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_part_that_is_no_medium_is_refused(suspect: Client, case: str) -> None:
    part, code = PARTS[case]
    assert refusal(suspect.send("POST", CHAT, chat(messages=[{"role": "user", "content": [part]}])))[:2] == (
        400,
        code,
    )
