"""Texts that tokenizers are slow on, or die of: the whole way takes a bounded time, and nobody else waits for
it.

The tokenizer by itself: tests/wire/test_tokens.py.
"""

import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bad_input.bodies import CHAT, TEXT, chat, text
from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

HARD = {
    "a million a": "a" * 1_000_000,
    "a million ^": "^" * 1_000_000,
    "a million spaces": " " * 1_000_000,
    "a million newlines": "\n" * 1_000_000,
    "50,000 underscores": "_" * 50_000,
    "100,000 times a.": "a." * 100_000,
    "digits": "7" * 1_000_000,
    "base64": b64encode(bytes(range(256)) * 3_000).decode(),
    "Chinese": "漢字" * 300_000,
    "Thai without spaces": "กขค" * 300_000,
    "one grapheme of 100,000 marks": "a" + "\u0301" * 100_000,
    "emoji": "👩‍👩‍👧‍👦" * 30_000,
    "brackets": "({[" * 300_000,
    "special tokens": "<|endoftext|><|im_start|>" * 40_000,
    "right to left": "\u202e" * 300_000,
}
BOUND_S = 5.0


COUNTED_BY_US = ("a million a", "a million spaces", "one grapheme of 100,000 marks")


def asked(model: str, path: str, words: str) -> bytes:
    """Return a request with these words."""
    return (
        text(model=model, prompt=words)
        if path == TEXT
        else chat(model=model, messages=[{"role": "user", "content": words}])
    )


@pytest.mark.parametrize(
    ("model", "case"),
    [("sandbox", case) for case in HARD] + [("tells-no-usage", case) for case in COUNTED_BY_US],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_text_that_is_hard_to_count_is_counted_in_time(
    client: Client, installation: Installation, model: str, path: str, case: str
) -> None:
    """The sandbox counts like an upstream; for an upstream without usage we count."""
    words = HARD[case]
    began = time.monotonic()
    answer = client.send("POST", path, asked(model, path, words))
    assert answer.status == 200
    assert time.monotonic() - began < BOUND_S
    receipt = installation.receipt(answer.headers["x-generation-id"])
    assert receipt["usage_source"] == ("upstream" if model == "sandbox" else "counted")
    assert 0 < receipt["usage"]["prompt_tokens"] <= len(words.encode()) + 1_000


def test_nobody_waits_while_hostile_texts_are_counted(client: Client) -> None:
    with ThreadPoolExecutor(4) as threads:
        running = [
            threads.submit(client.send, "POST", CHAT, asked("sandbox", CHAT, words))
            for words in HARD.values()
        ]
        waits = []
        while not all(each.done() for each in running):
            began = time.monotonic()
            assert client.complete("five").status == 200
            waits.append(time.monotonic() - began)
    assert {each.result().status for each in running} == {200}
    assert max(waits) < BOUND_S, waits
