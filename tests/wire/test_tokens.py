"""Token counting: exact where it says so, linear in time, harmless for every text."""

import asyncio
import resource
import shutil
import subprocess
import sys
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapi.wire import tokens

ENGLISH = (
    "The harbour master keeps 24 letters; he doesn't open them.\n\tNobody knows why, not even you. " * 200
)
HARD = [
    "a",
    "^",
    "_",
    " ",
    "A",
    "\n",
    "a.",
    " \n\t",
    "字",
    "e\u0301",
    "👩\u200d👩\u200d👧",
    "\ud800",
    "\x00",
    "<|endoftext|>",
]


@pytest.fixture(autouse=True, scope="module")
def _vocabularies() -> None:
    tokens.warm(*tokens.ENCODINGS)


@pytest.mark.parametrize("encoding", tokens.ENCODINGS)
def test_it_counts_what_tiktoken_counts(encoding: str) -> None:
    assert tokens.count(ENGLISH, encoding) == len(tiktoken.get_encoding(encoding).encode_ordinary(ENGLISH))


def test_it_knows_the_published_examples() -> None:
    # https://github.com/openai/openai-cookbook: How_to_count_tokens_with_tiktoken
    assert tokens.count("antidisestablishmentarianism", "cl100k_base") == 6
    assert tokens.count("2 + 2 = 4", "o200k_base") == 7
    assert tokens.count("お誕生日おめでとう", "o200k_base") == 8


def test_special_tokens_are_plain_text() -> None:
    assert tokens.count("<|endoftext|>") > 1


def test_no_text_is_no_tokens() -> None:
    assert (tokens.count(""), tokens.estimate(""), tokens.upper_bound(0), list(tokens.split(""))) == (
        0,
        0,
        0,
        [],
    )


WORDS = st.sampled_from(
    [*ENGLISH.split(" ")[:20], "'s", "1234", "Ünï", "字字", "...", "x\n", "\ty", "\u00a0", "//", "\r\nThe"]
)
SPACES = st.sampled_from([" ", " ", "  ", "\n ", " \n"])


@given(st.lists(st.tuples(WORDS, SPACES), min_size=1, max_size=40))
@settings(max_examples=50)
def test_a_cut_before_a_space_changes_no_count(words: list[tuple[str, str]]) -> None:
    line = "".join(word + space for word, space in words) + "end of line"
    text = line * (1 + 10_000 // len(line))
    assert tokens.count(text) == len(tiktoken.get_encoding("o200k_base").encode_ordinary(text))


@pytest.mark.parametrize("unit", HARD)
def test_hard_text_takes_linear_time_and_does_not_panic(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    started = time.thread_time()
    counted = tokens.count(text)
    assert time.thread_time() - started < 1.0
    assert 0 < counted <= tokens.upper_bound(len(text.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize("unit", [*HARD, ENGLISH])
def test_an_estimate_of_any_megabyte_is_quick_and_close(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    started = time.thread_time()
    estimated = tokens.estimate(text)
    # 2 to 14 ms on the development machine; the bound leaves room for a busy one.
    assert time.thread_time() - started < 0.1
    assert estimated == pytest.approx(tokens.count(text[:100_000]) * len(text) / 100_000, rel=0.1)


# What has stalled or crashed other services: long runs of one character, text without spaces, one endless
# grapheme.
ATTACKS = {
    "letters": "a" * 1_000_000,
    "carets": "^" * 1_000_000,
    "underscores": "_" * 50_000,
    "spaces": " " * 1_000_000,
    "dots": "a." * 100_000,
    "base64": b64encode(Random(3).randbytes(750_000)).decode(),
    "chinese": "道可道非常道名可名非常名" * 25_000,
    "grapheme": "e" + "\u0301" * 100_000,
}


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
def test_text_made_to_stall_a_tokenizer_does_not(text: str) -> None:
    size = len(text.encode())
    started = time.thread_time()
    assert 0 < tokens.estimate(text) <= tokens.upper_bound(size)
    assert time.thread_time() - started < 0.1  # as above: 20 ms a MB, and room for a busy machine
    started = time.thread_time()
    assert 0 < tokens.count(text) <= tokens.upper_bound(size)
    assert time.thread_time() - started < 2.0


@given(st.text(max_size=300))
def test_an_estimate_of_a_short_text_is_its_count(text: str) -> None:
    assert tokens.estimate(text) == tokens.count(text)


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_split_gives_the_text_back_and_its_count(text: str) -> None:
    pieces = list(tokens.split(text))
    assert "".join(piece for piece, _ in pieces) == text
    assert sum(cost for _, cost in pieces) == tokens.count(text)


def test_decode_gives_the_text_of_token_ids() -> None:
    ids = tiktoken.get_encoding("o200k_base").encode_ordinary("Grüße, 你好")
    assert tokens.decode(ids) == "Grüße, 你好"
    assert tokens.decode([2**40, 10**7]) == "\ufffd\ufffd"


def test_split_reads_only_as_far_as_it_is_asked() -> None:
    pieces = tokens.split("word " * 2_000_000)
    started = time.thread_time()
    assert next(pieces) == ("word", 1)
    assert time.thread_time() - started < 0.1


@given(st.text(max_size=20_000), st.integers(1, 10_000))
def test_the_parts_of_a_text_are_as_many_tokens_as_the_text(text: str, least_chars: int) -> None:
    parts = list(tokens.parts(text, least_chars))
    assert "".join(parts) == text
    assert all(len(part) >= least_chars for part in parts[:-1])
    assert sum(map(tokens.count, parts)) == tokens.count(text)


def test_the_parts_of_a_long_text_are_as_many_tokens_as_the_text() -> None:
    for text in (ENGLISH * 20, "a" * 50_000, " " * 20_000, "ab " * 30_000):
        assert sum(map(tokens.count, tokens.parts(text, 16_384))) == tokens.count(text)


@given(st.lists(st.text(max_size=40), max_size=50))
def test_a_counter_agrees_with_the_count_of_the_whole(deltas: list[str]) -> None:
    counter = tokens.Counter()
    for delta in deltas:
        counter.add(delta)
    assert counter.tokens == tokens.count("".join(deltas))


def test_a_counter_encodes_a_long_stream_on_the_way() -> None:
    counter = tokens.Counter("cl100k_base")
    for word in ENGLISH.split(" ") * 4:
        counter.add(f"{word} ")
        counter.encode_pieces()
    assert counter.uncounted_chars < 8192
    assert counter.tokens == tokens.count(" ".join(ENGLISH.split(" ") * 4) + " ", "cl100k_base")


@given(st.lists(st.text(max_size=20), max_size=40))
def test_a_counter_can_be_read_at_any_time(deltas: list[str]) -> None:
    counter = tokens.Counter()
    for position, delta in enumerate(deltas):
        counter.add(delta)
        assert counter.tokens == tokens.count("".join(deltas[: position + 1]))


def test_a_loaded_vocabulary_is_in_memory_once() -> None:
    """It takes 45 MB; with tiktoken's own copy it would be 72."""
    resident = "int(Path('/proc/self/statm').read_text().split()[1])"
    code = f"from pathlib import Path; from chatapi.wire import tokens; before = {resident}; tokens.warm(); "
    code += f"print({resident} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(done.stdout) * resource.getpagesize() < 60 << 20


def test_an_unknown_encoding_is_named() -> None:
    with pytest.raises(ValueError, match="'gpt2': choose one of o200k_base, cl100k_base"):
        tokens.count("x", "gpt2")


def test_a_damaged_vocabulary_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790"
    damaged.write_bytes(b"YQ== 0\n")
    monkeypatch.setattr(tokens, "_VOCABULARY", tmp_path)
    monkeypatch.setattr(tokens, "_loaded", {})
    with pytest.raises(tokens.VocabularyError, match="missing or damaged"):
        tokens.warm()
    assert damaged.read_bytes() == b"YQ== 0\n"
    shutil.rmtree(tmp_path)
    with pytest.raises(tokens.VocabularyError, match="missing or damaged"):
        tokens.count("x", "cl100k_base")


def test_many_threads_load_one_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = tokens._load

    def noted_load(name: str) -> tiktoken.Encoding:
        loads.append(name)
        return load(name)

    monkeypatch.setattr(tokens, "_loaded", {})
    monkeypatch.setattr(tokens, "_load", noted_load)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(tokens.count, ["one"] * 16)) == {1}
    assert loads == ["o200k_base"]


async def test_counting_in_a_thread_leaves_the_loop_running() -> None:
    counting = asyncio.create_task(asyncio.to_thread(tokens.count, ENGLISH * 20))
    turns = 0
    while not counting.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 1
