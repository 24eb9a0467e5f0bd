"""The sandbox's markers: what they say, what is refused, and that the manual knows them all."""

import re
from pathlib import Path

import pytest

from chatapi.worker.engines.sandbox.schema import FORMATS, KEYWORDS
from chatapi.worker.engines.sandbox.script import (
    BEHAVIOURS,
    ERRORS,
    MARKERS,
    MarkerError,
    Script,
    read,
    without_markers,
)


def test_markers_refine_what_the_model_says() -> None:
    script = read("sandbox-reasoning", "Hello [sandbox tokens=64 delay_ms=20] there [sandbox finish=length]")
    assert script == Script(tokens=64, delay_ms=20, reasoning_tokens=16, finish="length")


def test_an_empty_marker_changes_nothing() -> None:
    assert read("sandbox", "[sandbox]") == read("another-model", "") == Script()


def test_what_only_looks_like_a_marker_is_text() -> None:
    assert (
        without_markers("[sandboxed] a [sandbox x=1][sandbox] b [sandbox-echo]")
        == "[sandboxed] a  b [sandbox-echo]"
    )


@pytest.mark.timeout(30)  # read once for each of them, it takes ten minutes of the worker's loop
def test_a_prompt_full_of_markers_that_never_end_is_read_at_once() -> None:
    text = "[sandbox " * 100_000
    assert read("sandbox", text) == Script()
    assert without_markers(text) == text.strip()


@pytest.mark.parametrize(
    ("text", "breaks_after", "stalls"),
    [("error=timeout after=3", 3, False), ("stall_after=2 error=timeout after=3", 2, True)],
)
def test_what_comes_first_breaks_the_answer_off(text: str, breaks_after: int, stalls: bool) -> None:
    script = read("sandbox", f"[sandbox {text}]")
    assert (script.breaks_after, script.stalls) == (breaks_after, stalls)


@pytest.mark.parametrize(
    ("marker", "named"),
    [
        ("tokns=3", "'tokns=3' is unknown"),
        ("tokens", "'tokens' is unknown"),
        ("tokens=-1", "tokens='-1' must be a whole number from 0 to 100000"),
        ("tokens=١٢", "must be a whole number"),
        ("tokens=1 tokens=2", "'tokens' is given twice"),
        ("finish=later", "finish='later' must be one of stop, length"),
        ("error=odd", "error='odd' must be one of invalid_request"),
        ("after=3", "need 'error'"),
    ],
)
def test_a_bad_marker_is_named_with_what_would_do(marker: str, named: str) -> None:
    with pytest.raises(MarkerError, match=re.escape(named)):
        read("sandbox", f"Hi [sandbox {marker}]")


MANUAL = Path(__file__).parents[3] / "docs" / "sandbox.md"


def test_the_manual_lists_every_model_marker_and_error() -> None:
    manual = MANUAL.read_text()
    rows = {line.split("`")[1] for line in manual.splitlines() if line.startswith("| `")}
    assert rows == {*BEHAVIOURS, *MARKERS, *ERRORS, "sandbox-embedding"}


def test_the_manual_lists_every_keyword_and_format_of_a_schema() -> None:
    section = MANUAL.read_text().partition("## JSON schemas")[2].partition("All other schemas")[0]
    rows = "".join(line for line in section.splitlines() if line.startswith("| "))
    words = {word for word in re.findall(r"`([^`]+)`", rows) if not word.startswith("#/")}
    assert words == {*KEYWORDS, *FORMATS}
