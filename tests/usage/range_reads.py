"""Reads of a single range, from the product's reads of several ranges at once."""

from usage.insights import Filters, Overage, Percentiles, Range, SumsSpec, Totals
from usage.insights.first_tokens import percentiles, weighed
from usage.insights.sums import sums_of


def first_token_ms(over: Range, filters: Filters | None = None) -> Percentiles | None:
    """Return the percentiles of the range; None when no request has begun to answer."""
    filters = filters or Filters()
    spans = weighed([over], filters)
    sums = sums_of([SumsSpec(span, None, filters) for span in spans]) if spans else []
    weights = {span: of_span.get(None, Totals()).requests for span, of_span in zip(spans, sums, strict=True)}
    return percentiles([over], filters, weights)[0]


def overage(over: Range, filters: Filters | None = None) -> Overage:
    """Return the overages that were written in the range."""
    (found,) = sums_of([SumsSpec(over, None, filters or Filters(), is_overage=True)])
    return Overage.of(found.get(None, Totals()))
