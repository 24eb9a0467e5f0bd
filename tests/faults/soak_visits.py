"""Records one client's requests in a soak, and the answers over each of its connections."""

import json
from dataclasses import dataclass, field
from http.client import HTTPResponse

from tests.faults.soak_protocols import PROTOCOLS, Reading, error_code

KEYED = (
    "sends it again",
    "attaches",
    "resumes",
    "fetches it later",
    "runs in the background",
    "cancels in the background",
)
"""Acts of clients that send an idempotency key."""
MEANT = {"counts": 0, "continues": 2}
"""The generations that a client wants, for acts where this number is not one."""
PING = '{"type":"ping"}'


@dataclass
class Heard:
    """The record of one connection; times are seconds of the monotonic clock."""

    began_at: float
    ended_at: float = 0.0
    status: int = 0
    """0: there was no answer at all."""
    generation_id: str = ""
    skipped_tokens: int = 0
    """The tokens that the client already has; this connection continues behind them."""
    words: list[str] = field(default_factory=list)
    """The text; each word is a token."""
    ends: int = 0
    """Finishes and errors that came."""
    ends_with_id: int = 0
    """The ends with an id, behind which a client can resume. An end from outside the log has no id, and is
    sent again.
    """
    had_end: bool = False
    """Whether the client already has the end, and resumes behind it."""
    is_document: bool = False
    """It was one piece of JSON."""
    is_done: bool = False
    """The answer came to its end."""
    is_accepted: bool = False
    """It was one piece of JSON that promises an answer."""
    has_left: bool = False
    """The client did not wait for the end."""
    usage: dict[str, int] | None = None
    late: list[str] = field(default_factory=list)
    """The lines after the end; there must be none."""
    event_id: str = ""
    """The id of the last event, if events have ids."""
    number: int | None = None
    """The number of the last event, if events have numbers of their own."""
    error_codes: list[str] = field(default_factory=list)
    """Of the errors that came, as a status or as a frame."""
    first_byte_s: float | None = None
    """From the request to the answer's head."""
    longest_silence_s: float = 0.0
    """Within the stream, from its head to its last event."""
    error_silence_s: float | None = None
    """The time between the last bytes, or the request, and an error."""
    protocol: str = "chat"
    _heard_at: float = 0.0
    _next_id: str = ""

    def __str__(self) -> str:
        how = "done" if self.is_done else "left" if self.has_left else "broken"
        when = f"{self.began_at:.2f}-{self.ended_at:.2f}"
        return (
            f"{self.generation_id or '-'} {self.status} {self.skipped_tokens}+{len(self.words)} {how} {when}"
        )

    @property
    def is_broken(self) -> bool:
        """Return whether the connection ended before the answer did, and not by the client."""
        return not self.is_done and not self.has_left

    @property
    def seen_tokens(self) -> int:
        """Return the number of tokens that the client has so far."""
        return self.skipped_tokens + len(self.words)

    def hear_head(self, now: float) -> None:
        """Note that the head of the answer has arrived."""
        self.first_byte_s = now - self.began_at
        self._heard_at = now

    def hear_event(self, now: float) -> None:
        """Note that an event has arrived; comments end no silence."""
        silence_s, self._heard_at = now - self._heard_at, now
        self.longest_silence_s = max(self.longest_silence_s, silence_s)
        if self.error_codes and self.error_silence_s is None:
            self.error_silence_s = silence_s

    def go_on_behind(self, before: "Heard") -> None:
        """Continue on this connection behind the client's last event of `before`."""
        self.event_id = self._next_id = before.event_id
        self.number = before.number
        self.skipped_tokens = before.seen_tokens
        self.had_end = before.had_end or (before.ends_with_id > 0 and not before.is_done)

    def begin(self, response: HTTPResponse) -> bool:
        """Take the answer's head, and all of an answer in one piece; return whether events follow."""
        self.status = response.status
        self.generation_id = response.headers["x-generation-id"] or ""
        if response.headers["content-type"] != "application/json":
            assert response.status == 200, response.status
            return True
        document = json.loads(response.read())
        self.ends, self.is_done, self.is_document = 1, True, True
        if response.status == 202:
            reading = Reading(id=document["id"], is_accepted=True)
        else:
            reading = PROTOCOLS[self.protocol].document(document)
        if error := document.get("error"):
            reading = reading._replace(error_code=error_code(error))
            self.error_silence_s = self.first_byte_s
        self.is_accepted = reading.is_accepted
        self._hear(reading)
        return False

    def take(self, line: str) -> bool:
        """Take a line of an answer in events; return whether an event has come."""
        name, _, value = line.partition(": ")
        if name == "data" and value != PING:
            self._take_event(value)
            return True
        if name == "id":
            self._next_id = value
        else:
            assert name in {"", "event", "data"}, line
        return False

    def _take_event(self, data: str) -> None:
        if self.is_done:
            self.late.append(data)
        elif data == "[DONE]":
            self.is_done = True
        else:
            reading = PROTOCOLS[self.protocol].event(json.loads(data))
            self.ends += reading.is_end
            self.ends_with_id += reading.is_end and self._next_id != self.event_id
            self.is_done = reading.is_last
            self.number = reading.number
            self._hear(reading)
        self.event_id = self._next_id

    def _hear(self, reading: Reading) -> None:
        if reading.error_code:
            self.error_codes.append(reading.error_code)
        self.generation_id = self.generation_id or reading.id
        self.usage = reading.usage or self.usage
        self.words += reading.text.split()


@dataclass
class Visit:
    """One client's request and all answers to it, in order."""

    act: str
    model: str
    prompt: str
    heard: list[Heard] = field(default_factory=list)
    failure: str = ""
    """The exception that ended the client; empty unless it failed."""
    protocol: str = "chat"

    def __str__(self) -> str:
        return f"{self.prompt} {self.protocol} {self.act}, {self.model}: {'; '.join(map(str, self.heard))}"

    @property
    def is_keyed(self) -> bool:
        """Return whether its requests have an idempotency key, which makes them one."""
        return self.act in KEYED

    @property
    def meant(self) -> int:
        """The number of generations that the client wants."""
        return MEANT.get(self.act, 1)

    @property
    def is_broken(self) -> bool:
        """Return whether its last connection broke."""
        return bool(self.heard) and self.heard[-1].is_broken
