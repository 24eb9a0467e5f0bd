"""Payment by Stripe, where the settings have its key: top-ups by Checkout, and usage as meter events.

`payments.py` and `webhook.py` book what was paid and given back. `metered_usage.py` writes the outbox of
usage, and `sender.py` sends it. Only `stripe_api.py` knows Stripe's package.
"""
