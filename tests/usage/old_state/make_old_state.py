"""Makes the state of an old release in this folder, with a checkout of it that has its own .venv:

python -m tests.usage.old_state.make_old_state CHECKOUT

Runs its `manage.py serve` on SQLite, sends requests of every kind that commit 292b07f has, books credit, a
discount and corrections, and keeps the database, the secrets, and what that release says of its books.
"""

import json
import lzma
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

from tests.chatapi.http_client import HELLO, Answer, Client
from tests.installation import Installation, wait_for
from tests.migrated_database import NAME

FOLDER = Path(__file__).parent
DATABASE = FOLDER / f"{NAME}.xz"
SECRETS = FOLDER / "secrets.env"
ANSWERS = FOLDER / "answers.json"
REPEATED = "sent-before-the-upgrade"
"""An idempotency key."""
CHAT = "/v1/chat/completions"
DAY_S = 86_400
PREFIXES = ("", "/openai", "/opentoken", "/bitseek", "/llama")
SANDBOXES = [
    f"sandbox-{name}"
    for name in ("tool-call", "parallel-tool-calls", "reasoning", "refusal", "length", "content-filter")
]
SANDBOXES += ["sandbox-error-before", "sandbox-error-midstream"]
KEYS = {
    "live": [],
    "poor": [],
    "slow": [],
    "small": ["--model", "sandbox"],
    "test": ["--test"],
    "admin": ["--admin"],
}
SET_UP = """
from django.contrib.auth.models import User
from accounts.models import APIKey, Member, Organization, RateLimit
from usage.database.clock import database_now
from usage.models import BudgetLimit, Discount
acme = Organization.objects.get(name="Acme")
keys = {key.name: key for key in APIKey.objects.filter(project__organization=acme)}
for period, dollars in (("day", 50), ("month", 500), ("ever", 5_000)):
    BudgetLimit.objects.create(scope="organization", scope_id=acme.pk, period=period,
        limit_nanodollars=dollars * 10**9, soft_limit_nanodollars=1_000)
BudgetLimit.objects.create(scope="key", scope_id=keys["poor"].pk, period="ever", limit_nanodollars=1)
RateLimit.objects.create(api_key=keys["slow"], requests_per_minute=1)
RateLimit.objects.create(organization=acme, tokens_per_minute=10_000_000)
Discount.objects.create(organization=acme, effective_from=database_now(), basis_points=1_000)
ada = User.objects.create_user("ada", password="a-passphrase-of-ada")
Member.objects.create(organization=acme, user=ada, role="owner")
"""
REPRICE = """
from datetime import timedelta
from usage.models import Price
old = Price.objects.get(model="sandbox-echo")
Price.objects.create(model=old.model, effective_from=old.effective_from + timedelta(milliseconds=1),
    input_per_mtok_nanodollars=200_000_000, cached_input_per_mtok_nanodollars=100_000_000,
    output_per_mtok_nanodollars=800_000_000)
"""


def main(checkout: Path) -> None:
    """Make the files."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Installation(Path(folder), checkout, CHATAPI_LEASE_MS="6000") as service,
    ):
        command = [str(checkout / ".venv/bin/python"), "manage.py", "serve", "--port", str(service.port)]
        service.run("service", command)
        wait_for(lambda: service.get("/readyz")[0] == 200, "the old release to start")
        keys = {name: _create_key(service, name, *options) for name, options in KEYS.items()}
        service.shell(SET_UP)
        _move_credit(service)
        clients = {name: Client(service.url, key) for name, key in keys.items()}
        others = [_ask(clients[name], "sandbox-echo") for name in ("poor", "slow", "slow", "small", "test")]
        answers = [*_send_all(clients["live"])]
        print(Counter(each.status for each in (*others, *answers)))
        ids = dict.fromkeys(
            each.headers["x-generation-id"] for each in answers if each.headers["x-generation-id"]
        )
        for each in ids:
            _settled(clients["live"], each)
        service.shell(REPRICE)
        service.output_of("rerate", "--model", "sandbox-echo", "--from", "2026-11-01", "--to", "2099-01-01")
        service.output_of("rollup")
        service.verify()
        kept = {
            "keys": keys,
            "receipts": [_settled(clients["live"], each) for each in ids],
            "reports": {path: clients["admin"].send("GET", path).json for path in _report_paths()},
        }
        assert service.end("service", signal.SIGINT) == 0
        _keep(Path(folder), kept)


def _create_key(service: Installation, name: str, *options: str) -> str:
    return service.create_key("--organization", "Acme", "--project", "shop", "--name", name, *options)


def _move_credit(service: Installation) -> None:
    for command, amount, *more in (("grantcredit", "10", "--require"), ("refundcredit", "2.50")):
        words = ("--organization", "Acme", "--usd", amount, "--reason", "invoice 17", *more)
        service.output_of(command, *words)


def _send_all(live: Client) -> Iterator[Answer]:
    """Yield the answers to requests of every kind."""
    for prefix, is_stream in product(PREFIXES, (True, False)):
        chat = {"model": "sandbox-echo", "messages": HELLO, "stream": is_stream}
        text = {"model": "sandbox", "prompt": ["a", "b"], "n": 2, "echo": True, "stream": is_stream}
        yield _post(live, f"{prefix}/v1/chat/completions", chat)
        yield _post(live, f"{prefix}/v1/completions", text)
    for model, is_stream in product(SANDBOXES, (True, False)):
        yield _ask(live, model, stream=is_stream)
    for words in ("[sandbox error=rate_limit]", "[sandbox error=server_error after=3]"):
        yield _ask(live, "sandbox", words, stream=True)
    for _ in range(2):
        yield _post(live, CHAT, {"model": "sandbox", "messages": HELLO}, idempotency_key=REPEATED)
    ticket = _post(live, f"{CHAT}/tickets", {"model": "sandbox", "messages": HELLO, "stream": True}).json
    yield live.send("GET", ticket["url"])
    later = _ask(live, "sandbox", "[sandbox tokens=30000 delay_ms=100]", prefer="respond-async")
    yield later
    yield live.send("POST", f"/v1/generations/{later.headers['x-generation-id']}/cancel")
    with live.asking("sandbox", stream=True, messages=_messages("[sandbox tokens=300 delay_ms=50]")) as left:
        for _ in zip(range(5), left.data(), strict=False):
            pass
        yield Answer(200, left.response.headers, b"")
    for body in ({"model": "unknown", "messages": HELLO}, {"model": "sandbox", "messages": "hello"}):
        yield _post(live, CHAT, body)


def _ask(client: Client, model: str, words: str = "hello", *, stream: bool = False, **headers: str) -> Answer:
    return _post(client, CHAT, {"model": model, "messages": _messages(words), "stream": stream}, **headers)


def _messages(words: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": words}]


def _post(client: Client, path: str, body: dict[str, Any], **headers: str) -> Answer:
    return client.send("POST", path, json.dumps(body).encode(), **headers)


def _settled(live: Client, generation_id: str) -> dict[str, Any]:
    """Return the generation's receipt, once it has one."""
    receipt: dict[str, Any] = {}

    def is_settled() -> bool:
        nonlocal receipt
        receipt = live.send("GET", f"/v1/generations/{generation_id}").json
        return bool(receipt["state"] == "settled")

    wait_for(is_settled, f"the end of {generation_id}")
    return receipt


def _report_paths() -> list[str]:
    start = int(time.time()) // DAY_S * DAY_S
    period = f"start_time={start}&end_time={start + DAY_S}&bucket_width=1d"
    return [
        f"/v1/organization/usage/completions?{period}&group_by=model&group_by=api_key_id",
        f"/v1/organization/costs?{period}&group_by=line_item",
    ]


def _keep(state_dir: Path, answers: dict[str, Any]) -> None:
    ANSWERS.write_text(json.dumps(answers) + "\n")
    shutil.copy(state_dir / SECRETS.name, SECRETS)
    with closing(sqlite3.connect(state_dir / NAME)) as database:
        database.execute("VACUUM INTO ?", [str(state_dir / "whole")])
    DATABASE.write_bytes(lzma.compress((state_dir / "whole").read_bytes(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
