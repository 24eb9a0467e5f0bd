"""Static files below a hash of all of them, so that browsers may keep them for a year, and compressed.

All files share one hash. So the relative URLs by which they name each other, `url()` in CSS and `import` in
modules, need no rewriting. The hash is computed from the installed packages, without `collectstatic`, and is
the same in every process of a release.
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
from whitenoise.responders import StaticFile

_HASH_CHARS = 12
_HASH = re.compile(rf"[0-9a-f]{{{_HASH_CHARS}}}/")
_KEPT = "max-age=31536000, public, immutable"
_GZIP = '-gzip"'  # at the end of an ETag
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
        """Answer a request for a file, compressed if it is a text and the client accepts gzip."""
        path = request.path_info.removeprefix(self.static_prefix)
        hashed = _HASH.match(path) if path != request.path_info else None
        url = f"{self.static_prefix}{path[hashed.end() :]}" if hashed else request.path_info
        file = self.find_file(url) if self.autorefresh else self.files.get(url)
        if file is None:
            return self.get_response(request)
        is_text = self.media_types.get_type(url) in _TEXTS
        takes_gzip = re_accepts_gzip.search(request.META.get("HTTP_ACCEPT_ENCODING", ""))
        serve = self._serve_compressed if is_text and takes_gzip else self.serve
        response: FileResponse = serve(file, request)
        if is_text:
            patch_vary_headers(response, ["Accept-Encoding"])
        if hashed and hashed[0] == f"{release()}/" and response.status_code < 400:
            response["Cache-Control"] = _KEPT
        return response

    def _serve_compressed(self, file: StaticFile, request: HttpRequest) -> FileResponse:
        """Answer with the whole file and an ETag of its own; a range would be one of the plain file."""
        request.META.pop("HTTP_RANGE", None)
        known = request.META.pop("HTTP_IF_NONE_MATCH", None)
        if known is not None:
            request.META["HTTP_IF_NONE_MATCH"] = known.replace(_GZIP, '"') if _GZIP in known else "none"
        response: FileResponse = self.serve(file, request)
        if "ETag" in response:
            response["ETag"] = response["ETag"].removesuffix('"') + _GZIP
        if response.status_code == 200:
            content = _compressed(file.get_path_and_headers(request.META)[0])
            response["Content-Encoding"], response["Content-Length"] = "gzip", str(len(content))
            if request.method != "HEAD":
                response.streaming_content = [content]
        return response


@cache
def _compressed(path: str) -> bytes:
    return gzip.compress(Path(path).read_bytes(), mtime=0)
