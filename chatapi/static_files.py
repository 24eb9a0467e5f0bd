"""Static files below a hash of all of them, so that browsers may keep them for a year, and compressed.

There is one hash for all files, because files name each other: what `url()` in CSS and `import` in a module
say is relative, and so needs no rewriting. It is made from the installed packages, without `collectstatic`,
and is the same in every process of a release.
"""

import gzip
import re
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from django.contrib.staticfiles.finders import get_finders
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.http import FileResponse, HttpRequest, HttpResponseBase
from django.middleware.gzip import re_accepts_gzip
from django.utils.cache import patch_vary_headers
from whitenoise.middleware import WhiteNoiseMiddleware

_HASH_CHARS = 12
_HASH = re.compile(rf"[0-9a-f]{{{_HASH_CHARS}}}/")
_KEPT = "max-age=31536000, public, immutable"
_TEXTS = {"text/css", "text/javascript", "image/svg+xml"}


@cache
def release() -> str:
    """Return the hash of the names and contents of all static files."""
    paths: dict[str, str] = {}
    for finder in get_finders():
        for name, storage in finder.list([]):
            paths.setdefault(name, storage.path(name))
    whole = sha256()
    for name in sorted(paths):
        whole.update(name.encode() + sha256(Path(paths[name]).read_bytes()).digest())
    return whole.hexdigest()[:_HASH_CHARS]


class HashedStorage(StaticFilesStorage):
    """Writes the hash into the URLs of files."""

    def url(self, name: str | None) -> str:
        """Return the URL of a file in this release."""
        return super().url(f"{release()}/{name}")


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """Serves files with any hash or none, so that pages of another release have their files during an update.

    Only this release's URLs are immutable.
    """

    get_response: Callable[[HttpRequest], HttpResponseBase]

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request for a file, compressed if it is a text and the client takes that."""
        path = request.path_info.removeprefix(self.static_prefix)
        hashed = _HASH.match(path) if path != request.path_info else None
        url = f"{self.static_prefix}{path[hashed.end() :]}" if hashed else request.path_info
        file = self.find_file(url) if self.autorefresh else self.files.get(url)
        if file is None:
            return self.get_response(request)
        response: FileResponse = self.serve(file, request)
        if hashed and hashed[0] == f"{release()}/" and response.status_code < 400:
            response["Cache-Control"] = _KEPT
        if response.get("content-type", "").partition(";")[0] in _TEXTS:
            patch_vary_headers(response, ["Accept-Encoding"])
            takes_gzip = re_accepts_gzip.search(request.headers.get("accept-encoding", ""))
            if takes_gzip and response.status_code == 200:
                self._compress(response, file.get_path_and_headers(request.META)[0], request.method)
        return response

    @staticmethod
    def _compress(response: FileResponse, path: str, method: str | None) -> None:
        content = _compressed(path)
        response["Content-Encoding"], response["Content-Length"] = "gzip", str(len(content))
        if method != "HEAD":
            response.streaming_content = [content]


@cache
def _compressed(path: str) -> bytes:
    return gzip.compress(Path(path).read_bytes(), mtime=0)
