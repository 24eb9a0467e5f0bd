"""Find in Redis the generations whose clients left before the first byte, and so never saw their ids."""

from typing import Any

from redis import Redis


class OpenGenerations:
    """Ids of generations, found in Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._known = self._ids("job")

    def new(self) -> list[str]:
        """Return the generations that were enqueued since the test began and have not ended."""
        return sorted(self._ids("job") - self._known)

    def is_cancelled(self, generation_id: str) -> bool:
        """Return whether the web process has reported that its client is gone."""
        return generation_id in self._ids("cancelled")

    def has_published(self, generation_id: str, text: str) -> bool:
        """Return whether the worker has published this text, in any number of pieces."""
        entries: Any = self._redis.xrange(f"chatapi:log:{generation_id}")
        return all(word in b"".join(fields[b"d"] for _, fields in entries) for word in text.encode().split())

    def _ids(self, kind: str) -> set[str]:
        return {key.decode().rpartition(":")[2] for key in self._redis.scan_iter(f"*{kind}:*")}
