"""A person's session at a running installation: pages are read and forms are sent as a browser does it."""

import re
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

TOKEN = re.compile(r'csrfmiddlewaretoken" value="(\w+)"')


class FormSession:
    """Keeps the cookies; the paths are those of one installation."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def get(self, path: str) -> str:
        """Return the page, also one that says that something is wrong."""
        return self._open(path)

    def post(self, path: str, form: str = "", /, **typed: object) -> str:
        """Send the form of this page, or of the page that `form` names; return the page after it."""
        token = TOKEN.search(self._open(form or path))
        assert token
        return self._open(path, urlencode({"csrfmiddlewaretoken": token[1], **typed}).encode())

    def _open(self, path: str, sent: bytes | None = None) -> str:
        try:
            with self.opener.open(self.url + path, sent) as page:
                return str(page.read().decode())
        except HTTPError as error:
            return error.read().decode()
