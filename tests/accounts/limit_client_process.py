"""A process that takes one request after another from a limit until a hundred are refused, and prints how
many were admitted.

Its arguments: SOCKET PREFIX MOST.
"""

import asyncio
import sys
from uuid import uuid4

from accounts.errors import RateLimited
from accounts.limits import MINUTE_MS, NOTHING_USED, Counts, Limit
from accounts.rate_limits import RateLimits
from chatapi.redis_client import connect


async def main(socket: str, prefix: str, most: int) -> int:
    """Take requests until a hundred are refused; return how many were admitted. `most` is the limit."""
    redis = connect(f"unix://{socket}")
    rate_limits, limit = (
        RateLimits(redis, prefix, lease_ms=5_000),
        Limit("key", 1, "", Counts.REQUESTS, most, MINUTE_MS),
    )
    taken = refused = 0
    while refused < 100:
        try:
            await rate_limits.take([limit], uuid4(), model="small", amounts=NOTHING_USED)
            taken += 1
        except RateLimited:
            refused += 1
    await redis.aclose()
    return taken


if __name__ == "__main__":
    _, socket, prefix, most = sys.argv
    print(asyncio.run(main(socket, prefix, int(most))))
