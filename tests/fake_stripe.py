"""A fake of Stripe for tests: an HTTP server with the routes that chatapi calls, and webhooks with Stripe's
signature scheme.

It behaves as Stripe's documentation says: it has idempotency keys, meter events with time limits and with
identifiers that are unique for a day, and sums by the minute. `fail` makes it fail on purpose. Tests act as
the person that pays (`pay`), as the bank (`refund`, `dispute`), and as Stripe's deliveries (`webhook`).
"""

import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from tests.installation import Installation

API_KEY = "sk_test_fake0000"
WEBHOOK_SECRET = "whsec_fake00000000"
METER = "chatapi_usage"
DAY_S = 24 * 60 * 60
Mode = Literal["500", "429", "lost", "401"]
"""`lost` does what was asked and closes the connection without an answer."""
Answer = tuple[int, dict[str, Any]]


class Refusal(Exception):
    """An error in Stripe's form."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.answer = status, {"error": {"type": kind, "message": message}}


class Stripe:
    """The state of the account."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.now: Callable[[], float] = time.time
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.sessions: dict[str, dict[str, Any]] = {}
        self.intents: dict[str, dict[str, Any]] = {}
        self.disputes: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self._failures: list[tuple[str, Mode]] = []
        self._idempotent: dict[str, tuple[str, Answer]] = {}
        self._numbers = count(1)

    # ---- what tests do

    def fail(self, mode: Mode, path: str = "", times: int = 1) -> None:
        """Fail the next calls whose path contains this."""
        self._failures += [(path, mode)] * times

    def stop_failing(self) -> None:
        self._failures.clear()

    @property
    def environment(self) -> dict[str, str]:
        """Return the settings of an installation that uses it."""
        return {
            "CHATAPI_STRIPE_API_KEY": API_KEY,
            "CHATAPI_STRIPE_WEBHOOK_SECRET": WEBHOOK_SECRET,
            "CHATAPI_STRIPE_METER": METER,
            "CHATAPI_STRIPE_API_URL": self.url,
        }

    def pay(self, session_id: str) -> dict[str, Any]:
        """Pay a session; return its payment intent."""
        session = self.sessions[session_id]
        assert session["status"] == "open", session
        intent = f"pi_fake{next(self._numbers)}"
        charge = {
            "id": intent.replace("pi_", "ch_"),
            "object": "charge",
            "payment_intent": intent,
            "amount_refunded": 0,
            "disputed": False,
            "receipt_url": f"https://pay.stripe.com/receipts/{intent}",
            "metadata": session["intent_metadata"],
        }
        self.intents[intent] = {"id": intent, "object": "payment_intent", "latest_charge": charge}
        self.intents[intent]["status"] = "succeeded"
        session |= {"status": "complete", "payment_status": "paid", "payment_intent": intent}
        return self.intents[intent]

    def pay_by_debit(self, session_id: str) -> dict[str, Any]:
        """Pay a session by a debit that takes days; return its payment intent, whose status tests change."""
        intent = self.pay(session_id)
        self.sessions[session_id]["payment_status"] = "unpaid"
        intent["status"] = "processing"
        return intent

    def expire(self, session_id: str) -> None:
        self.sessions[session_id]["status"] = "expired"

    def refund(self, intent: str, cents: int) -> dict[str, Any]:
        """Refund a part of the payment; return the charge."""
        charge: dict[str, Any] = self.intents[intent]["latest_charge"]
        charge["amount_refunded"] += cents
        return charge

    def dispute(self, intent: str, cents: int, status: str = "needs_response") -> dict[str, Any]:
        """Dispute a part of the payment; return the dispute, whose status tests may change."""
        self.intents[intent]["latest_charge"]["disputed"] = True
        dispute = {"object": "dispute", "payment_intent": intent, "amount": cents, "status": status}
        self.disputes.append(dispute)
        return dispute

    def webhook(self, kind: str, thing: Any, *, at: float | None = None) -> tuple[bytes, str]:
        """Return the body and the signature of a webhook."""
        event = {
            "id": f"evt_{next(self._numbers)}",
            "object": "event",
            "type": kind,
            "data": {"object": thing},
        }
        body = json.dumps(event).encode()
        return body, signature(body, int(at or time.time()))

    def total(self, customer: str) -> int:
        """Return the sum of the customer's events."""
        return sum(event["value"] for event in self.events if event["customer"] == customer)

    # ---- its routes

    def answer(self, method: str, path: str, parameters: dict[str, Any], key: str) -> Answer:
        """Execute the request, once for each idempotency key."""
        for pattern, route in self._routes(method):
            if match := re.fullmatch(pattern, path):
                asked = json.dumps([path, parameters], sort_keys=True)
                if key in self._idempotent:
                    before, answer = self._idempotent[key]
                    if before != asked:
                        raise Refusal(400, "Keys for idempotent requests …", "idempotency_error")
                    return answer
                answer = 200, route(parameters, *match.groups())
                if key:
                    self._idempotent[key] = asked, answer
                return answer
        raise Refusal(404, f"Unrecognized request URL ({method}: {path}).")

    def _routes(self, method: str) -> list[tuple[str, Callable[..., dict[str, Any]]]]:
        if method == "POST":
            return [
                ("/v1/checkout/sessions", self._create_session),
                ("/v1/billing/meter_events", self._create_event),
            ]
        return [
            (r"/v1/checkout/sessions/(\w+)", self._session),
            ("/v1/disputes", self._disputes),
            ("/v1/billing/meters", lambda _: listed([{"id": "mtr_1", "event_name": METER}])),
            (r"/v1/billing/meters/(\w+)/event_summaries", self._sum),
        ]

    def _create_session(self, parameters: dict[str, Any]) -> dict[str, Any]:
        (line,) = parameters["line_items"].values()
        price = line["price_data"]
        if int(price["unit_amount"]) < 50 or not 1_790 < int(parameters["expires_at"]) - self.now() < DAY_S:
            raise Refusal(400, "Invalid amount or expires_at.")
        session = {
            "id": f"cs_test_fake{next(self._numbers)}",
            "object": "checkout.session",
            "client_reference_id": parameters["client_reference_id"],
            "currency": price["currency"],
            "amount_total": int(price["unit_amount"]) * int(line["quantity"]),
            "status": "open",
            "payment_status": "unpaid",
            "payment_intent": None,
            "metadata": parameters["metadata"],
            "success_url": parameters["success_url"],
            "cancel_url": parameters["cancel_url"],
        }
        session["url"] = f"{self.url}/pay/{session['id']}"
        self.sessions[session["id"]] = session | {
            "intent_metadata": parameters["payment_intent_data"]["metadata"]
        }
        return session

    def _session(self, parameters: dict[str, Any], session_id: str) -> dict[str, Any]:
        if session_id not in self.sessions:
            raise Refusal(404, f"No such checkout.session: {session_id}")
        session = dict(self.sessions[session_id])
        if "payment_intent.latest_charge" in parameters.get("expand", {}).values():
            session["payment_intent"] = self.intents.get(session["payment_intent"])
        return session

    def _disputes(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return listed([row for row in self.disputes if row["payment_intent"] == parameters["payment_intent"]])

    def _create_event(self, parameters: dict[str, Any]) -> dict[str, Any]:
        identifier, at, payload = (parameters[name] for name in ("identifier", "timestamp", "payload"))
        if parameters["event_name"] != METER:
            raise Refusal(400, "No active meter found for the event name.")
        if not self.now() - 35 * DAY_S < int(at) < self.now() + 300:
            raise Refusal(400, "The timestamp must be within the past 35 calendar days.")
        if not re.fullmatch(r"-?\d{1,15}", payload["value"]):
            raise Refusal(400, "The value must be a whole number.")
        if len(identifier) > 100:
            raise Refusal(400, "The identifier is too long.")
        known = (event for event in self.events if event["received"] > self.now() - DAY_S)
        if any(event["identifier"] == identifier for event in known):
            raise Refusal(400, f"An event already exists with identifier {identifier}.")
        self.events.append(
            {
                "identifier": identifier,
                "at": int(at),
                "customer": payload["stripe_customer_id"],
                "value": int(payload["value"]),
                "received": self.now(),
            }
        )
        return {"object": "billing.meter_event", **parameters}

    def _sum(self, parameters: dict[str, Any], meter_id: str) -> dict[str, Any]:
        start, end = int(parameters["start_time"]), int(parameters["end_time"])
        if meter_id != "mtr_1" or start % 60 or end % 60:
            raise Refusal(400, "Times must be aligned with minute boundaries.")
        found = [
            event["value"]
            for event in self.events
            # Stripe's documentation says both that the end is included and that it is not.
            if event["customer"] == parameters["customer"] and start <= event["at"] <= end
        ]
        return listed([{"aggregated_value": float(sum(found))}] if found else [])

    def failure(self, path: str) -> Mode | None:
        """Remove and return the failure that is planned for the next call of this path, if any."""
        for number, (part, mode) in enumerate(self._failures):
            if part in path:
                del self._failures[number]
                return mode
        return None


def signature(body: bytes, at: int, secret: str = WEBHOOK_SECRET) -> str:
    """Return the header `Stripe-Signature`, as Stripe's documentation defines it."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def listed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": rows, "has_more": False}


def nested(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Return form fields such as `payload[value]` as dictionaries."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        *parents, last = re.findall(r"[^\[\]]+", name)
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return found


class _Handler(BaseHTTPRequestHandler):
    stripe: Stripe

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self._answer(nested(parse_qsl(body, keep_blank_values=True)))

    def do_GET(self) -> None:
        self._answer(nested(parse_qsl(urlsplit(self.path).query)))

    def _answer(self, parameters: dict[str, Any]) -> None:
        path = urlsplit(self.path).path
        with self.stripe.lock:
            self.stripe.calls.append((self.command, path, parameters))
            mode = self.stripe.failure(path)
            status, answer = self._outcome(path, parameters, mode)
        if mode == "lost":
            self.close_connection = True
            return
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _outcome(self, path: str, parameters: dict[str, Any], mode: Mode | None) -> Answer:
        if mode in ("500", "429", "401"):
            return int(mode), {"error": {"type": "api_error", "message": "It fails on purpose."}}
        if path.startswith("/pay/"):
            return 200, {"page": "pay"}
        if self.headers["Authorization"] != f"Bearer {API_KEY}":
            return 401, {"error": {"type": "invalid_request_error", "message": "Invalid API Key."}}
        try:
            key = self.headers.get("Idempotency-Key", "")
            return self.stripe.answer(self.command, path, parameters, key)
        except Refusal as refusal:
            return refusal.answer

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def installation_with(stripe: Stripe, folder: Path, **environment: str) -> Iterator[Installation]:
    """Run an installation and its reaper that take payments with this fake; its books must be right at the
    end.
    """
    with Installation(folder, **stripe.environment, **environment) as installation:
        installation.start({})
        installation.start_reaper()
        yield installation
        installation.verify()


@contextmanager
def serving() -> Iterator[Stripe]:
    """Run the fake on a free port."""
    handler = type("Handler", (_Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        stripe = handler.stripe = Stripe(server.server_port)  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield stripe
        finally:
            server.shutdown()
