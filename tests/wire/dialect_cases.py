"""The answers that the golden transcripts hold, as deltas: one for each feature, in every dialect, and
the documents' own.

`python -m tests.wire.dialect_cases` writes the transcripts anew; what has changed in them is then to be read
as a change of the wire.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Audio,
    Failed,
    Finished,
    Reasoning,
    Refusal,
    Started,
    Text,
    TokenLogprob,
    ToolCall,
    TopLogprob,
    Usage,
    decode,
    encode,
)
from chatapi.wire.protocols import chat
from chatapi.wire.protocols.chat import STYLES as DIALECTS
from chatapi.wire.protocols.chat.encoder import ChatEncoder, CompletionFolder
from chatapi.wire.protocols.protocol import Answer, Dialect
from chatapi.wire.protocols.text_completions.encoder import TextEncoder
from chatapi.wire.upstream.logprobs import UNKNOWN_LOGPROB

TRANSCRIPTS = Path(__file__).parent.parent / "transcripts"
SEED_MODEL = "google/gemini-3-flash"
IDS = {"openai": "1", "opentoken": "1", "bitseek": "26e9476e14e94165915a723ccbbaa5ad", "llama": "1"}
"""Bitseek's is that of its document, where it has to be a UUID."""

FAILURE = Failed("The upstream closed the connection.", "server_error", "upstream_disconnected")
END: list[AnyDelta] = [Finished("stop"), Usage(12, 18)]
CITATION = {
    "type": "url_citation",
    "url_citation": {
        "start_index": 0,
        "end_index": 12,
        "title": "Weather",
        "url": "https://example.org/weather",
    },
}
WEATHER = [ToolCall(0, "", "call_1", "get_weather"), ToolCall(0, '{"city":'), ToolCall(0, '"Tokyo"}')]


@dataclass(frozen=True)
class Case:
    """Deltas, and the rest of what an encoder gets."""

    deltas: list[AnyDelta]
    answer: dict[str, Any] = field(default_factory=dict)
    is_text: bool = False

    @property
    def has_failed(self) -> bool:
        return isinstance(self.deltas[-1], Failed)

    def encoder(self, dialect: str) -> ChatEncoder:
        given: dict[str, Any] = {
            "id": IDS[dialect],
            "created": 1_700_000_000,
            "model": SEED_MODEL,
        } | self.answer
        kind = TextEncoder if self.is_text else ChatEncoder
        return kind(Answer(**given), DIALECTS[dialect])

    def stream(self, dialect: str) -> bytes:
        """Return the answer as a stream, after its deltas have crossed Redis."""
        return self.encoder(dialect).encode(decode(encode(self.deltas)))

    def body(self, dialect: str) -> bytes:
        """Return the answer in one piece."""
        return folded(self.encoder(dialect), self.deltas)


def folded(encoder: ChatEncoder, deltas: Iterable[AnyDelta]) -> bytes:
    """Return the deltas as the encoder's answer in one piece."""
    folder = CompletionFolder(encoder)
    for delta in deltas:
        folder.add(delta)
    return folder.body()


def refused(folder: Path, dialect: Dialect, failure: Failed) -> tuple[Path, bytes]:
    """The golden file of a failure before the answer, and the body that it has to be."""
    return folder / "refused.json", dialect.envelope(failure, request_id="req_1").body + b"\n"


def logprob(token: str, value: float, *others: tuple[str, float]) -> TokenLogprob:
    alternatives = [TopLogprob(text, other, list(text.encode())) for text, other in others]
    return TokenLogprob(token, value, list(token.encode()), alternatives)


CHATS = {
    "text": Case([Started(), Text("Packets "), Text("in flight"), *END]),
    "include-usage": Case([Started(), Text("Packets "), Text("in flight"), *END], {"include_usage": True}),
    "details": Case(
        [
            Started("fp_1", "default"),
            Reasoning("Hm."),
            Text("42"),
            Finished("length"),
            Usage(12, 18, cached_tokens=8, reasoning_tokens=6),
        ]
    ),
    "usage-kinds": Case(
        [
            Started(),
            Text("42"),
            Finished("stop"),
            Usage(100, 18, 50, 6, cache_write_tokens=30, cache_write_1h_tokens=10),
        ],
        {"include_usage": True},
    ),
    "content-filter": Case([Started(), Text("Once"), Finished("content_filter"), Usage(12, 18)]),
    "cancelled": Case([Started(), Text("Once"), Finished("stop", is_cancelled=True), Usage(12, 18)]),
    "tool-call": Case([Started(), *WEATHER, Finished("tool_calls"), Usage(12, 18)]),
    "tool-calls": Case(
        [
            Started(),
            *WEATHER,
            ToolCall(1, "ls -l", "call_2", "shell", kind="custom"),
            Finished("tool_calls"),
            Usage(12, 18),
        ]
    ),
    "parallel-tool-calls": Case(
        [
            Started(),
            Text("Let me see."),
            *WEATHER[:2],
            ToolCall(1, "{}", "call_2", "get_time"),
            WEATHER[2],
            Finished("tool_calls"),
            Usage(12, 18),
        ]
    ),
    # As `ToolCallReader` completes a call for which the upstream has sent no arguments.
    "tool-call-without-arguments": Case(
        [
            Started(),
            ToolCall(0, "", "call_1", "get_time"),
            ToolCall(1, '{"city":', "call_2", "get_weather"),
            ToolCall(1, '"Tokyo"}'),
            ToolCall(0, "{}"),
            Finished("tool_calls"),
            Usage(12, 18),
        ]
    ),
    "function-call": Case(
        [
            Started(),
            ToolCall(0, "", name="get_weather", kind="function_call"),
            ToolCall(0, '{"city":', kind="function_call"),
            ToolCall(0, '"Tokyo"}', kind="function_call"),
            Finished("function_call"),
            Usage(12, 18),
        ]
    ),
    "audio": Case(
        [
            Started(),
            Audio(id="audio_1", transcript="Good"),
            Audio("AAECAw==", " morning"),
            Audio("BAU=", expires_at=1_700_003_600),
            Finished("stop"),
            Usage(12, 18),
        ]
    ),
    "annotations": Case([Started(), Text("It is sunny."), Annotations([CITATION]), *END]),
    "annotations-in-pieces": Case(
        [
            Started(),
            Text("It is sunny.", 1),
            Annotations([CITATION], 1),
            Text("It is warm."),
            Annotations([CITATION]),
            Text(" And dry.", 1),
            Annotations([CITATION], 1),
            Finished("stop", 1),
            *END,
        ],
        {"choices_count": 2},
    ),
    "refusal": Case([Started(), Refusal("I can't help with that."), *END]),
    "escapes": Case([Started(), Text('"\\\n\u0000\u2028é😀</script>'), *END]),
    "logprobs": Case(
        [
            Started(),
            Text("Hi", logprobs=[logprob("Hi", -0.25, ("Hi", -0.25), ("Ho", -2.5))]),
            Finished("stop"),
            Usage(12, 1),
        ]
    ),
    "two-choices": Case(
        [
            Started(),
            Text("a", 0),
            Text("b", 1),
            ToolCall(0, "{}", "call_1", "f", 1),
            Finished("tool_calls", 1),
            Finished("length", 0),
            Usage(1, 2),
        ],
        {"choices_count": 2},
    ),
    "empty": Case([Started(), Finished("stop"), Usage(12, 0)]),
    "failure": Case([Started(), Text("Packets "), FAILURE]),
    "failure-in-a-tool-call": Case([Started(), *WEATHER[:2], FAILURE]),
    "failure-behind-a-tool-call": Case(
        [Started(), *WEATHER[:2], ToolCall(1, "{}", "call_2", "get_time"), FAILURE]
    ),
}

LOGPROBS = {"logprobs": True}
"""The context of a text completion whose client asked for log probabilities."""
ONCE: list[AnyDelta] = [Text(" Once"), Text(" upon"), Text(" a")]
COMPLETIONS = {
    "completion": Case([Started(), *ONCE, Finished("length"), Usage(4, 3)], is_text=True),
    "completion-include-usage": Case(
        [Started("fp_1"), *ONCE, Finished("length"), Usage(4, 3)], {"include_usage": True}, is_text=True
    ),
    "completion-echo-logprobs": Case(
        [
            Started(context=LOGPROBS),
            Text(
                "Say é",
                logprobs=[logprob("Say", UNKNOWN_LOGPROB), logprob(" é", -1.5, (" é", -1.5), (" a", -2.0))],
            ),
            Text("", logprobs=[logprob("\ufffd", -0.5, ("\ufffd", -0.5), ("\ufffd", -0.75), ("!", -1.0))]),
            Text("😀", logprobs=[logprob("\ufffd", -0.125)]),
            Text("!", logprobs=[logprob("!", -0.25)]),
            *END,
        ],
        is_text=True,
    ),
    "completion-prompts": Case(
        [
            Started(context=LOGPROBS),
            Text("a", 0, [logprob("a", -0.5)]),
            Text("b", 1, [logprob("b", -0.5)]),
            Text("cd", 0, [logprob("c", -0.5), logprob("d", -0.5)]),
            Finished("stop", 1),
            Finished("content_filter", 0),
            Usage(8, 3),
        ],
        {"choices_count": 2},
        is_text=True,
    ),
    "completion-of-a-chat": Case(
        [
            Started(),
            Reasoning("Hm."),
            Text("It is "),
            Refusal("no."),
            *WEATHER,
            Finished("tool_calls"),
            Usage(12, 18),
        ],
        is_text=True,
    ),
    "completion-failure": Case([Started(), *ONCE, FAILURE], is_text=True),
}

CASES = CHATS | COMPLETIONS

SEEDS: dict[str, dict[str, Case]] = {
    "bitseek": {
        "seed-000-text": Case([Started(), Text("Hello"), Text(" world"), *END], {"model": ""}),
        "seed-000-tool-call": Case(
            [
                Started(),
                ToolCall(0, '{"city"', "call_1", "get_weather"),
                ToolCall(0, ':"Singapore"}'),
                Finished("tool_calls"),
                Usage(12, 18),
            ],
            {"model": ""},
        ),
        "seed-002": Case(
            [Started(), Text("Hello"), Text("! How"), *END], {"model": "", "created": 1_773_042_793}
        ),
    },
    "llama": {
        "seed-003-text-completion": Case([Started(), *ONCE, *END], is_text=True),
        "seed-003-chat": Case([Started(), Text("Hi"), Text(" there"), *END]),
        "seed-003-tools": Case(
            [
                Started(),
                ToolCall(0, "", "call_weather", "get_weather"),
                *(ToolCall(0, piece) for piece in ('{"', "city", '":\\"Tokyo\\"}')),
                Finished("tool_calls"),
                Usage(12, 18),
            ]
        ),
        "seed-003-error": Case(
            [Started(), Text("Hi"), Failed("context overflow", code="context_length_exceeded")]
        ),
    },
    "opentoken": {
        "seed-004": Case([Started(), Text("Packets "), Text("in flight"), *END], {"include_usage": True})
    },
}


def transcripts() -> Iterator[tuple[Path, bytes]]:
    """Yield each golden file and its content."""
    for dialect in DIALECTS:
        for name, case in (CASES | SEEDS.get(dialect, {})).items():
            yield TRANSCRIPTS / dialect / f"{name}.sse", case.stream(dialect)
            if not case.has_failed:
                yield TRANSCRIPTS / dialect / f"{name}.json", case.body(dialect) + b"\n"
        yield refused(TRANSCRIPTS / dialect, chat.CHAT.dialect(dialect), FAILURE)


if __name__ == "__main__":
    for path, content in transcripts():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
