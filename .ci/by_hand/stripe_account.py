"""An account of Stripe: the fake of the project's tests, with people who pay at once.

.venv/bin/python stripe_account.py URL_FILE WEBHOOK_URL    run in the project's folder
"""

import os
import re
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, os.getcwd())

from tests import fake_stripe

url_file, webhook_url = sys.argv[1:]
with fake_stripe.serving() as stripe:
    Path(url_file).write_text("".join(f"{name}={value}\n" for name, value in stripe.environment.items()))
    paid: set[str] = set()
    while True:
        time.sleep(0.1)
        for call in list(stripe.calls):
            opened = re.fullmatch(r"/pay/(\w+)", call[1])
            if opened and opened[1] not in paid:
                paid.add(opened[1])
                stripe.pay(opened[1])
                webhook, signature = stripe.webhook("checkout.session.completed", stripe.sessions[opened[1]])
                headers = {"Content-Type": "application/json", "Stripe-Signature": signature}
                request = urllib.request.Request(webhook_url, webhook, headers)
                with urllib.request.urlopen(request, timeout=20) as answer:
                    print(f"webhook: {answer.status}", flush=True)
