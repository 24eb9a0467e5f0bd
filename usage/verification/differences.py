"""Differences in the books."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """Two values that should be equal and are not, in words for people."""

    invariant: str
    subject: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.subject}: expected {self.expected}, found {self.found}"
