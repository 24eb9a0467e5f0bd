"""What is wrong with the books, for people to read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that should be equal and is not."""

    invariant: str
    subject: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.subject}: expected {self.expected}, found {self.found}"
