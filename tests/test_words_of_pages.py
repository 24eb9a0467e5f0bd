"""Words that first-time readers of pages did not understand, and that have plainer ones."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [
    *("accounts/models", "accounts/pages", "usage"),
    *("chatapi/api", "chatapi/console", "chatapi/doctor", "chatapi/pages", "chatapi/web"),
]
PAGES = [
    *(
        path
        for package in ("accounts", "chatapi", "usage")
        for path in ROOT.glob(f"{package}/templates/**/*.html")
    ),
    *(
        path
        for folder in FOLDERS
        for path in ROOT.glob(f"{folder}/**/*.py")
        if path.parent.name != "migrations"
    ),
    ROOT / "chatapi/models.py",
]
AVOIDED = [
    "beyond holds", "Next lease", "Oldest lease", "Closed by the reaper", "nobody asked",
    "came to its end", "price of its admission", "request's settlement", "what people did to it",
    "It refuses nothing", "a month or ever", "Applies to one of these", "what they use together",
    "nothing may pass", "as often as it likes", "Budgets that it counts in", "None chosen",
    "no way back", "Nobody has paid in advance", "less refunds", "by whomever", "Book it", "Give back",
    "Charge more", "does not hear of it", "Key variable", "must take them", "addresses of pictures",
    "when the client names none", "Basis points:", "is known here", "may change their place",
    "Return to site", "stronger than the prefix", "Requests beyond it", "Requests admitted", "YOUR_KEY by",
    "Empty: the address", "page at this address", "This address takes", "the address of this service",
    "from your address", "Your address has", "Your address opens", "is not a date or time",
    "cost ≥", "cost ≤", "counts when it is settled", "Changes are against", "none open", "no worker in time",
    "by the newest 500", "says nothing of the deployment", "passed on: it failed", "Moments", "Time of",
    "All columns of the row", "cost from $", ">Held", "Period: Ever", "It is refused within a second",
    "for whoever reads", "has in its cache", "makes a new person", "you need both", "This admin",
    "The cap per choice",
]  # fmt: skip


@pytest.mark.parametrize("words", AVOIDED)
def test_words_that_nobody_understood_do_not_come_back(words: str) -> None:
    assert len(PAGES) > 350
    found = [path for path in PAGES if words in " ".join(path.read_text().split())]
    assert [str(path.relative_to(ROOT)) for path in found] == []
