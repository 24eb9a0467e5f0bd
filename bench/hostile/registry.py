"""The attacks by name: a coroutine function, the first line of its docstring, and the attacker's means."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatch

from bench.hostile.raw_client import Attacker

Run = Callable[[Attacker], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    """One attack, as the report names it."""

    name: str
    who: str
    """The attacker's means: `no key`, `test key`, `live key`, `upstream`; or `control`."""
    summary: str
    run: Run
    is_sent_to_sink: bool = False
    """Whether the bytes go to a process that drops them, as some controls' do."""


ATTACKS: dict[str, Attack] = {}


def attack(who: str, *, is_sent_to_sink: bool = False) -> Callable[[Run], Run]:
    """Register a coroutine function as an attack; its name and docstring are the attack's."""

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        summary = (run.__doc__ or "").strip().splitlines()[0].rstrip(".")
        ATTACKS[name] = Attack(name, who, summary, run, is_sent_to_sink)
        return run

    return register


KINDS = ("control", "no key", "test key", "live key", "upstream")


def select(patterns: list[str]) -> list[Attack]:
    """Return the attacks whose name or attacker matches one of the patterns, in the order of
    `KINDS`; raises ValueError.
    """
    unknown = [
        pattern for pattern in patterns if not any(_matches(attack, pattern) for attack in ATTACKS.values())
    ]
    if unknown:
        raise ValueError(f"no attack is named {', '.join(unknown)}; --list shows them")
    found = [
        attack
        for attack in ATTACKS.values()
        if not patterns or any(_matches(attack, each) for each in patterns)
    ]
    return sorted(found, key=lambda attack: KINDS.index(attack.who))


def _matches(attack: Attack, pattern: str) -> bool:
    return fnmatch(attack.name, pattern) or attack.who == pattern
