"""The settings of payment: whether it is on, and what is wrong with them."""

import re
from importlib.util import find_spec
from urllib.parse import urlsplit

from django.conf import settings

_API_KEY = re.compile(r"(sk|rk)_[A-Za-z0-9_]{8,}")
_WEBHOOK_SECRET = re.compile(r"whsec_[!-~]{8,}")
_METER = re.compile(r"[A-Za-z0-9_.-]{1,30}")
# Also the place of the pages at which people pay; where the API is a test's, so are they.
_CHECKOUT = {"https://api.stripe.com": "https://checkout.stripe.com"}


def is_on() -> bool:
    return bool(settings.STRIPE_API_KEY)


def checkout_origin() -> str:
    """Return the origin to which people are sent to pay."""
    url: str = settings.STRIPE_API_URL
    return _CHECKOUT.get(url, url)


def mistakes() -> list[str]:
    """Return a sentence for each setting that is wrong; none has a secret in it."""
    key, secret, meter = settings.STRIPE_API_KEY, settings.STRIPE_WEBHOOK_SECRET, settings.STRIPE_METER
    if not (key or secret or meter):
        return []
    url = urlsplit(settings.STRIPE_API_URL)
    is_local = url.hostname in ("127.0.0.1", "localhost")
    is_key, is_secret = _API_KEY.fullmatch(key), _WEBHOOK_SECRET.fullmatch(secret)
    found = {
        "CHATAPI_STRIPE_API_KEY is not a key of Stripe, such as rk_live_51Ha….": not is_key,
        "CHATAPI_STRIPE_WEBHOOK_SECRET is not a webhook's secret, which begins with whsec_.": not is_secret,
        f"CHATAPI_STRIPE_METER={meter!r} is not the event name of a meter.": bool(meter)
        and not _METER.fullmatch(meter),
        "CHATAPI_STRIPE_API_URL is not an https:// URL without a path.": bool(url.path)
        or not url.netloc
        or url.scheme not in (("http", "https") if is_local else ("https",)),
        "CHATAPI_STRIPE_API_KEY is set, but Stripe's package is not installed.": find_spec("stripe") is None,
    }
    return [sentence for sentence, is_wrong in found.items() if is_wrong]
