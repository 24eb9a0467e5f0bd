"""One line of a doctor's report."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: its subject, its severity, what was found, and what to do about it."""

    subject: str
    level: Level
    text: str
    remedy: str = ""
    """Empty if nothing is to be done."""


def ok(subject: str, text: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(subject, Level.OK, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding with which the service runs, but not as it should."""
    return Finding(subject, Level.WARNING, text, remedy)


def wrong(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding with which requests fail, or with which the books or secrets are at risk."""
    return Finding(subject, Level.WRONG, text, remedy)
