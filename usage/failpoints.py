"""Failpoints: named places where a test can make the process die, fail or freeze.

They do nothing unless `CHATAPI_FAILPOINTS` is set.

    CHATAPI_FAILPOINTS="settle.in_tx=kill9@3;enqueue.after=sleep:5;claim.after=raise"

`kill9` ends the process as a crash does, `raise` raises `FailpointError`, `sleep:N` stops the calling thread
(on an event loop: the whole loop) for N seconds. `@3` means at the third hit only; without it, at every hit.
"""

import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field

# Those that a request passes.
OF_REQUESTS = (
    "admit.before_commit", "admit.after_commit", "enqueue.after", "claim.before", "claim.after",
    "upstream.connected", "delta.before_publish", "delta.after_publish", "heartbeat.before",
    "settle.before_tx", "settle.in_tx", "settle.after_commit", "terminal.after_publish", "reaper.after_seal",
    "reaper.in_tx", "reaper.after_commit", "view.before_first_byte", "view.after_terminal",
)  # fmt: skip
# Those that a month's statements pass.
OF_STATEMENTS = ("itemize.in_tx", "statement.before_tx", "statement.in_tx", "statement.after_commit")
# Those that a switch to another model passes.
OF_SWITCHES = ("switch.before_commit", "switch.after_commit")
# Those that payments and reports of usage pass.
OF_PAYMENTS = (
    "payment.after_row", "payment.after_session", "payment.before_tx", "payment.in_tx",
    "payment.after_commit", "meter.in_tx", "meter.before_send", "meter.after_send", "meter.after_record",
)  # fmt: skip
# Those that an event passes: when a look finds it, and on its way to people and systems.
OF_EVENTS = (
    "watch.before_tx", "watch.in_tx", "watch.after_commit", "dispatch.in_tx", "deliver.after_send",
)  # fmt: skip
NAMES = (*OF_REQUESTS, *OF_SWITCHES, *OF_STATEMENTS, *OF_PAYMENTS, *OF_EVENTS)
_ACTION = re.compile(
    r"(?P<name>[a-z._0]+)=(?:(?P<action>kill9|raise)|sleep:(?P<sleep_s>\d+(?:\.\d+)?))(?:@(?P<hit>[1-9]\d*))?"
)


class FailpointError(RuntimeError):
    """Raised by a failpoint whose action is `raise`."""


@dataclass
class _Failpoint:
    action: str
    sleep_s: float
    hit: int | None
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strike(self, name: str) -> None:
        # Threads of the worker may reach one failpoint at the same moment; "@3" must strike once.
        with self.lock:
            self.hits += 1
            if self.hit is not None and self.hits != self.hit:
                return
        if self.action == "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "raise":
            raise FailpointError(name)
        else:
            # Blocks the event loop on purpose: this is how a frozen process looks to the others.
            time.sleep(self.sleep_s)


def parse(text: str) -> dict[str, _Failpoint]:
    """Return the failpoints that the text arms; raises ValueError with the allowed form."""
    armed: dict[str, _Failpoint] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        match = _ACTION.fullmatch(part)
        if match is None or match["name"] not in NAMES:
            raise ValueError(
                f"{part!r} is no failpoint: write NAME=kill9, NAME=raise or NAME=sleep:SECONDS, "
                f"each with an optional @HIT; NAME is one of {', '.join(NAMES)}"
            )
        hit = int(match["hit"]) if match["hit"] else None
        armed[match["name"]] = _Failpoint(match["action"] or "sleep", float(match["sleep_s"] or 0), hit)
    return armed


_armed: dict[str, _Failpoint] = {}


def arm(text: str) -> None:
    """Arm the failpoints of the text and disarm all others; raises ValueError."""
    # All of the text is parsed before anything is armed, so that a mistake changes nothing.
    found = parse(text)
    _armed.clear()
    _armed.update(found)


def failpoint(name: str) -> None:
    """Do what a test armed for this name, if anything."""
    # Called on every request, so the unarmed case is one look at an empty dictionary.
    if _armed and name in _armed:
        _armed[name].strike(name)
