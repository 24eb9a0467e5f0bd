"""docs/payment.md: a person pays in advance, and an organization is billed by usage."""

import re
from pathlib import Path

from by_hand.clients import NGINX, signed_in, submit
from by_hand.documents import PAYMENT
from by_hand.machine import PROJECT, expect, fail, run, wait_for
from by_hand.processes import (
    change_settings,
    doctor,
    restart_webs,
    restart_workers,
    run_with_settings,
)

ACCOUNT = Path("/root/stripe-account")
"""The variables that the account wants in chatapi's environment."""


def set_up_payment() -> None:
    """Install the package, name the account, top up, and let Stripe bill another organization."""
    run(PAYMENT.quoted("make payment"), online=True)
    program = Path(__file__).parent / "stripe_account.py"
    webhook = PAYMENT.quoted("https://your.host/stripe/webhook").replace("your.host", NGINX.host)
    run(
        f"systemd-run --unit=stripe --working-directory={PROJECT} --setenv=SSL_CERT_FILE={NGINX.certificate} "
        f"{PROJECT}/.venv/bin/python {program} {ACCOUNT} {webhook}"
    )
    wait_for(ACCOUNT.exists, "the account")
    settings = ACCOUNT.read_text()
    PAYMENT.quoted("CHATAPI_STRIPE_METER=chatapi_usage")
    for line in PAYMENT.block("CHATAPI_STRIPE_API_KEY=").splitlines():
        expect(line.partition("=")[0], settings)
    change_settings(settings)
    # "Set these variables in the environment of web processes and reapers, and start them again."
    restart_workers()
    restart_webs()
    top_up()
    run_with_settings('.venv/bin/python manage.py createkey --organization "Acme Inc"')
    command = PAYMENT.block("stripecustomer --organization").strip()
    expect("cus_NciAYcXfLnqBoz of Acme Inc: usage from ", run_with_settings(command))
    without_customer = re.sub(r" --customer \S+", "", command)
    expect("cus_NciAYcXfLnqBoz of Acme Inc", run_with_settings(without_customer))
    expect("ok       payment", doctor())


def top_up() -> None:
    """Let the operator pay $20 for the first organization, and wait for its credit."""
    browser, _ = signed_in()
    page = browser.open(f"https://{NGINX.host}/console/", timeout=30)
    organization = min(map(int, re.findall(r"/console/(\d+)/", page.read().decode())))
    url = f"https://{NGINX.host}/console/{organization}/credit"
    opened = submit(browser, browser.open(url, timeout=30), {"preset": "20"})
    if "/pay/" not in opened.url:
        fail(f"the button leads to {opened.url}")

    def is_booked() -> bool:
        text = browser.open(url, timeout=30).read().decode()
        return bool(re.search(r"Balance.*\$20\.00", text, re.DOTALL))

    wait_for(is_booked, "the credit")
    expect("webhook: 200", run("journalctl --unit stripe --no-pager"))
