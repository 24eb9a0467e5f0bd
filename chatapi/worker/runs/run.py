"""One running generation in this process: its fence, its usage, and the ways to stop it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from chatapi.delta_stream import CANCELLED, Cancellation
from chatapi.models import OnDisconnect
from chatapi.tracing import NO_SPAN, Span
from chatapi.wire.deltas import AnyDelta, Failed, Started
from chatapi.wire.upstream.upstream_errors import STOPPED
from chatapi.worker.runs import run_spans
from chatapi.worker.runs.held_answer import HeldAnswer
from chatapi.worker.runs.publisher import Publisher
from chatapi.worker.runs.run_usage import End, Ending, RunUsage
from usage.books.ledger import Candidate, Claimed
from usage.books.settlement import Attempt

STREAM_LOST = Failed(
    "The answer could not be delivered. What was delivered of it is charged.",
    code="stream_unavailable",
    status=503,
)
KEY_REVOKED = Failed(
    "The API key of this request is no longer valid. What was generated is charged.",
    "invalid_request_error",
    "invalid_api_key",
    status=401,
)
SHUTTING_DOWN = Failed(
    "The worker is shutting down. What was generated is charged.", code="server_shutting_down", status=503
)

# The longest time for which the deltas of an answer in one piece are held: clients may follow it by its id.
MAX_HELD_S = 1.0


class Run:
    """A claimed generation while it runs."""

    def __init__(
        self,
        claimed: Claimed,
        inbox: str,
        *,
        runs_on: bool = False,
        content: bytes | None = None,
        is_kept: bool = True,
        is_held: bool = False,
    ) -> None:
        """`runs_on`: it continues although its client leaves. `content`: the request as JSON, None if it is
        lost. `is_kept`: its state is kept, if it has one. `is_held`: the client gets the answer at its end.
        """
        self.claimed = claimed
        """The claim, with the model that is asked now."""
        self.requested = claimed
        """The claim, with the requested model."""
        self.inbox = inbox
        self.next_seq = 1
        self.has_published = False
        self.has_lost_stream = False
        self.has_lost_web = False
        """Whether the web process has died: then no silence of the deployment made the client leave."""
        self.usage = RunUsage()
        self.content = content
        self.is_kept = is_kept
        self.request_bytes = 0 if content is None else len(content)
        """The length of `content`, which decides how long work on the request takes."""
        self.deployment = ""
        self.waited_for_room_s = 0.0
        """How long it has waited for room at deployments."""
        self.answers_as: str | None = None
        """The name of the model that is asked, if it is not the requested one; else None."""
        self.stopped: End | None = None
        self.context: dict[str, Any] = {}
        """The parameters of the request that the answer repeats."""
        self.prompt_tokens: int | None = None
        """The estimate of the prompt's tokens with which the answer begins."""
        self.span: Span = NO_SPAN
        self.attempt_span: Span = NO_SPAN
        """The span of the open attempt."""
        self._held = HeldAnswer() if is_held else None
        self._release: asyncio.TimerHandle | None = None
        self._runs_on = runs_on
        self._client_has_left = False
        self._on_disconnect: OnDisconnect | None = None
        self._attempts: list[Attempt] = []
        self._attempt_began_ms: int | None = None
        self._scope: asyncio.Timeout | None = None

    # Not attributes: with 30 of them, an instance's dict does not share its keys, and takes 1.6 kB.
    @property
    def id(self) -> UUID:
        return self.requested.id

    @property
    def organization_id(self) -> int:
        return self.requested.organization_id

    @property
    def fence(self) -> int:
        return self.requested.fence

    @asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Run the block; `stop` interrupts it with a TimeoutError."""
        try:
            async with asyncio.timeout(None) as self._scope:
                yield
        finally:
            self._scope = None

    async def pause(self, wait_s: float) -> End | None:
        """Wait between two attempts. Returns None after that time, or the end as soon as the run is stopped.

        Only waits between attempts need this. While an engine streams, `scope` interrupts every wait.
        """
        if self.stopped is None:
            with suppress(TimeoutError):
                async with self.scope():
                    await asyncio.sleep(wait_s)
        return self.stopped

    def take_content(self) -> bytes:
        """Return the content and drop it: a large one must not stay in memory beside the decoded request."""
        assert self.content is not None, "the request is lost, or taken already"
        content, self.content = self.content, None
        return content

    def publish(self, publisher: Publisher, batch: list[AnyDelta]) -> None:
        """Hand a batch to the publisher, which keeps the order. An empty batch is ignored."""
        if batch:
            if isinstance(batch[0], Started):
                own = {"context": self.context, "prompt_tokens": self.prompt_tokens, "model": self.answers_as}
                batch = [msgspec.structs.replace(batch[0], **own), *batch[1:]]
            self.has_published = True
            passing = batch if self._held is None else self._held.add(batch)
            if passing:
                publisher.put(self, passing)
            elif self._release is None:
                loop = asyncio.get_running_loop()
                self._release = loop.call_later(MAX_HELD_S, self._publish_slow, publisher)

    def publish_counted(self, publisher: Publisher, batch: list[AnyDelta]) -> None:
        """Publish a batch that was counted meanwhile, or take it back if the stream was lost meanwhile."""
        if self.has_lost_stream:
            self.usage.take_back(batch)
        else:
            self.publish(publisher, batch)

    def publish_held(self, publisher: Publisher) -> None:
        """Hand what is held to the publisher."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        if self._held is not None and (held := self._held.take()):
            publisher.put(self, held)

    def _publish_slow(self, publisher: Publisher) -> None:
        if self.stopped is None:  # otherwise its end decides
            self.publish_held(publisher)

    @property
    def published_pieces(self) -> int:
        """The number of deltas with content that a client may have seen: others are not to be charged."""
        if self._held is None:
            return self.usage.pieces
        # An echo that is still held is subtracted, too: rather too few than too many.
        return 0 if self.has_lost_stream else max(0, self._held.taken_pieces - self.usage.echoed_pieces)

    def stop(self, end: End) -> None:
        """End the run now; the first reason counts."""
        if self.stopped is not None:
            return
        self.stopped = end
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    def cancel(self, why: Cancellation) -> None:
        """Stop the run on request. If its client has left, the deployment's rule decides."""
        if why is Cancellation.ASKED:
            self.stop(End(Ending.CANCELLED))
        elif why is Cancellation.STOPPED:
            self.stop(End(Ending.FAILED, STOPPED))
        else:
            self._client_has_left = True
            self._stop_if_unwanted()

    def apply_rule(self, on_disconnect: OnDisconnect) -> End | None:
        """Follow a deployment's rule for clients that leave; return the end if the run is stopped."""
        self._on_disconnect = on_disconnect
        self._stop_if_unwanted()
        return self.stopped

    def begin_attempt(self, deployment: str, on_disconnect: OnDisconnect) -> End | None:
        """Begin an attempt on a deployment, with its rule for clients that leave.

        Returns the end if the run is stopped.
        """
        if self.apply_rule(on_disconnect) is None:
            self.deployment, self._attempt_began_ms = deployment, self.usage.total_ms
        return self.stopped

    def switch_model(self, model: Candidate, requested_model: str | None) -> None:
        """Continue with another model, to which the books have switched already."""
        self.claimed = replace(
            self.claimed,
            model=model.model,
            requested_model=requested_model,
            max_output_tokens=model.max_output_tokens,
            max_prompt_tokens=model.max_prompt_tokens,
            price=model.price,
        )
        self.answers_as = model.name

    def end_attempt(self, error_code: str) -> None:
        """Record the open attempt, if there is one; an empty code means that it has not failed."""
        if self._attempt_began_ms is not None:
            began_ms, self._attempt_began_ms = self._attempt_began_ms, None
            duration_ms = self.usage.total_ms - began_ms
            model = self.claimed.model
            self._attempts.append(Attempt(self.deployment, error_code, duration_ms, began_ms, model))
            run_spans.end_attempt(self.attempt_span, self.usage, error_code, began_ms)
            self.attempt_span = NO_SPAN

    def ended(self, end: End) -> End:
        """Attach the attempts to the end, closing the open one without blaming its deployment."""
        self.end_attempt("")
        return replace(end, attempts=tuple(self._attempts))

    def _stop_if_unwanted(self) -> None:
        """Stop if the client has left and the deployment's rule allows it."""
        # Before a deployment is chosen, its rule is not known: it may be to finish the answer.
        rule = self._on_disconnect
        stops = rule is OnDisconnect.CANCEL or (rule is OnDisconnect.DRAIN and not self.has_published)
        if self._client_has_left and stops and not self._runs_on:
            self.stop(End(Ending.CLIENT_LEFT, CANCELLED))

    def fence_off(self) -> None:
        """Stop without publishing or settling: a process with a newer fence has taken over."""
        self.stop(End(Ending.FENCED_OFF))

    def lose_stream(self, given_up: Sequence[AnyDelta]) -> None:
        """Stop, and do not charge for these deltas, which could not be published."""
        self.has_lost_stream = True
        self.usage.take_back([*given_up, *(self._held.take() if self._held is not None else ())])
        self.stop(End(Ending.FAILED, STREAM_LOST))
