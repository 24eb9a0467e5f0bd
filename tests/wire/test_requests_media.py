"""Pictures, sounds and files: what may be in a request, and addresses that no one may fetch."""

from typing import Any

import pytest

from chatapi.wire.caps import MAX_PART_DATA_CHARS
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.requests import refuse_remote_media
from tests.wire.request_bodies import HELLO, chat, chat_body, chat_refusal, refusal, text

TEXT = {"type": "text", "text": "What is this?"}
URL = "messages[1].content[1].image_url.url"
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}}


def messages(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [HELLO, {"role": "user", "content": [TEXT, part]}]


def picture(url: str) -> list[dict[str, Any]]:
    return messages({"type": "image_url", "image_url": {"url": url}})


@pytest.mark.parametrize(
    "media_type", ["png", "jpeg", "jpg", "webp", "gif", "bmp", "tiff", "avif", "heic", "heif"]
)
def test_it_takes_pictures_that_are_in_the_request(media_type: str) -> None:
    request = chat(messages=picture(f"data:image/{media_type};base64,iVBORw0KGgo="))
    assert (request.prompt.has_media, request.remote_media_param) == (True, None)


REMOTE = [
    "https://example.com/cat.png",
    "https://example.com/cat.png?x=1#y",
    "http://a.b-c.example:8080",
    "https://example.com/@me",
]
INNER = """
    http://127.0.0.1/ http://127.0.0.1:6379 http://127.1/ http://0/ http://0.0.0.0/ http://0x7f.1/
    http://0x7f000001/ http://0177.0.0.1/ http://2130706433/ http://[::1]/ http://[::]/
    http://[::ffff:127.0.0.1]/ http://[::ffff:7f00:1]/ http://[fe80::1%25eth0]/
    http://169.254.169.254/latest/meta-data/ http://10.0.0.1/ http://192.168.1.1/ http://localhost/
    http://localhost. http://localhost./ http://LOCALHOST/ http://redis:6379/ http://web.localhost/
    http://db.internal/ http://metadata.google.internal/computeMetadata/v1/ http://nas.local/
    http://db.default.svc/ http://db.default.svc.cluster.local/ http://router.lan:80/
    http://1.0.0.127.in-addr.arpa/ http://good@evil.example/ http://user:pass@example.com/
    http://good.example\\@evil.example/ http://example.com\\@10.0.0.1/ http://good.example#@evil.example/
    http://example.com?@10.0.0.1/ http://example.com:80:80/ http://example.com:x/ http:example.com
    http:/example.com http:///example.com http://.example.com/ http://example..com/ http://example.com./
    http://ex%61mple.com/ http://exämple.com/ http://１２７.０.０.１/ http://①②⑦.example/ http://example.com/ä
    HTTP://EXAMPLE.COM/ //example.com/cat.png file:///etc/passwd FILE:///etc/passwd
    ftp://example.com/cat.png gopher://example.com:6379/_SET dict://example.com/ ldap://example.com/
    jar:http://example.com!/ blob:https://example.com/1 javascript:alert(1) cat.png /etc/passwd
""".split()  # noqa: SIM905  sixty quoted lines would be hard to read
INNER += [
    "",
    "http://example.com/ x",
    "http://example.com/\n",
    "\thttp://example.com/",
    "https://example.com/" + "x" * 2_048,
]
BAD_DATA = [
    "data:",
    "data:,",
    "data:image/png;base64,",
    "data:image/png;base64," + "," * 10_000,
    "data:image/png" + ",AAAA" * 10_000,
    "data:image/png,AAAA",
    "data:image/png;base64,AAAA\n",
    "data:image/png;base64,AA==AA",
    "data:image/png;base64,AA-_",
    "data:image/png;base64,AA%3D%3D",
    "data:image/png;charset=utf-8;base64,AAAA",
    "data:image/svg+xml;base64,AAAA",
    "data:text/html;base64,AAAA",
    "data:;base64,AAAA",
    " data:image/png;base64,AAAA",
    "DATA:image/png;base64,AAAA",
]


@pytest.mark.parametrize("url", [*REMOTE, *INNER, *BAD_DATA])
def test_it_refuses_every_picture_that_is_not_in_the_request(url: str) -> None:
    assert chat_refusal(messages=picture(url)) == (URL, "unsupported_media")


@pytest.mark.parametrize("url", REMOTE)
def test_remote_pictures_are_for_deployments_that_allow_them(url: str) -> None:
    request = parse_chat(chat_body(messages=picture(url), stream=True))
    assert request.remote_media_param == URL
    with pytest.raises(InvalidRequest) as refused:
        refuse_remote_media(request)
    assert (refused.value.param, refused.value.code, refused.value.is_stream) == (
        URL,
        "unsupported_media",
        True,
    )


def test_a_request_without_a_url_is_not_refused() -> None:
    refuse_remote_media(chat(messages=messages(PICTURE)))
    refuse_remote_media(text())
    assert text().remote_media_param is None


@pytest.mark.parametrize("url", INNER)
def test_no_deployment_gets_an_address_that_is_not_a_public_name(url: str) -> None:
    error = refusal(chat_body(messages=picture(url)), parse_chat)
    assert (error.param, error.code) == (URL, "unsupported_media")


@pytest.mark.parametrize(
    ("part", "member"),
    [
        (
            {"type": "input_audio", "input_audio": {"data": "https://example.com/a.wav", "format": "wav"}},
            "input_audio.data",
        ),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "input_audio.data"),
        ({"type": "file", "file": {"file_data": "https://example.com/a.pdf"}}, "file.file_data"),
        ({"type": "file", "file": {"file_data": "data:application/pdf,plain"}}, "file.file_data"),
        ({"type": "file", "file": {"file_id": "https://example.com/a.pdf"}}, "file.file_id"),
        ({"type": "file", "file": {"file_id": "../../etc/passwd"}}, "file.file_id"),
    ],
)
def test_sounds_and_files_are_no_addresses_either(part: dict[str, Any], member: str) -> None:
    assert chat_refusal(messages=messages(part)) == (f"messages[1].content[1].{member}", "unsupported_media")


def test_media_are_capped() -> None:
    fits = "data:image/png;base64,"
    fits += "A" * (MAX_PART_DATA_CHARS - len(fits))
    assert chat(messages=picture(fits)).prompt.has_media
    assert chat_refusal(messages=picture(fits + "A")) == (URL, "unsupported_media")
    assert chat_refusal(messages=picture("data:image/png;base64," + "A" * 50_000_000)) == (
        URL,
        "unsupported_media",
    )
    sound = {"type": "input_audio", "input_audio": {"data": "A" * (MAX_PART_DATA_CHARS + 1), "format": "mp3"}}
    assert chat_refusal(messages=messages(sound)) == (
        "messages[1].content[1].input_audio.data",
        "unsupported_media",
    )


@pytest.mark.parametrize("part", [PICTURE, SOUND, FILE])
def test_it_knows_whether_there_are_media(part: dict[str, Any]) -> None:
    assert chat(messages=messages(part)).prompt.has_media
    assert not chat(messages=messages(TEXT)).prompt.has_media


def test_an_earlier_spoken_answer_is_a_sound() -> None:
    assert chat(messages=[HELLO, {"role": "assistant", "audio": {"id": "audio_1"}}]).prompt.has_media
