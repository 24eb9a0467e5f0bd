"""Whether clients' certificates can arrive, and whether an authority of an organization expires soon."""

from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from accounts import certificates
from accounts.models import Certificate
from chatapi.doctor.finding import Finding, ok, warning, wrong

SOON = timedelta(days=30)
# A line for each; the organizations see the others in the console.
_MOST_NAMED = 20


def check_client_certificates() -> Iterator[Finding]:
    """Yield the active certificates for which requests are refused, or will be soon."""
    now, active = timezone.now(), Q(is_active=True) | Q(projects__isnull=False)
    rows = Certificate.objects.filter(active).select_related("organization").distinct()
    if not rows.exists():
        return
    if certificates.are_received():
        yield ok("certificates", "Clients' certificates are expected from the trusted proxies.")
    else:
        yield wrong(
            "certificates",
            "Keys need client certificates, but no proxy passes any on: their requests are refused.",
            "Set CHATAPI_CLIENT_CERTIFICATE_HEADER and CHATAPI_TRUSTED_PROXIES.",
        )
    expiring = rows.filter(expires_at__lt=now + SOON).order_by("expires_at")
    for row in expiring[:_MOST_NAMED]:
        if row.expires_at <= now:
            text = f"{row} has expired: requests that need it are refused."
        else:
            text = f"{row} expires on {row.expires_at:%Y-%m-%d}; then requests that need it are refused."
        remedy = "Its organization has to activate its successor, or to deactivate it."
        yield warning("certificates", text, remedy)
