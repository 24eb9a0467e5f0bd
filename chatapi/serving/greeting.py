"""Prints what a person needs after `serve` has started: URLs, and two snippets that work when pasted."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from chatapi.serving.first_start import ADMINISTRATOR, ORGANIZATION, Credentials

_KEY_VARIABLE = "CHATAPI_KEY"


def base_url(host: str, port: int) -> str:
    """Return the URL that a client on this machine uses."""
    if host in ("", "0.0.0.0"):  # noqa: S104  compared, not bound
        host = "127.0.0.1"
    if host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def first_start_message(credentials: Credentials) -> str:
    """Return the secrets of a first start, to be printed at once: no later error may hide them."""
    lines = [f'First start: made the organization "{ORGANIZATION}" and the sandbox models. Shown only now:']
    lines.append(f"  API key   {credentials.api_key}")
    if credentials.password:
        lines.append(f"  /admin/   user {ADMINISTRATOR}, password {credentials.password}")
    return "\n".join(lines)


def greeting(url: str, credentials: Credentials | None) -> str:
    """Return the URLs and snippets; they contain the API key only if it has just been made."""
    createkey = f"{_python()} manage.py createkey --organization {ORGANIZATION}"
    hint = f"With {_KEY_VARIABLE} set to an API key ({createkey} makes one), try:"
    return f"""Ready at {url}. Ctrl-C stops it.
  {url}/console/  for the people of an organization
  {url}/admin/    for operators
  {url}/docs      for developers
{_names_of_the_admin(url)}{"Try it:" if credentials else hint}

{_curl(url, credentials)}

or in Python, after pip install openai:

{_openai(url, credentials)}

"""


def _names_of_the_admin(url: str) -> str:
    """Return a line if the pages refuse the URL's host name, which the API accepts; otherwise no text."""
    name, _ = split_domain_port(urlsplit(url).netloc)
    if validate_host(name, settings.ALLOWED_HOSTS):
        return ""
    names = ", ".join(settings.ALLOWED_HOSTS)
    return f"The pages open only under the names in CHATAPI_ALLOWED_HOSTS ({names}), not under {name}.\n"


def _curl(url: str, credentials: Credentials | None) -> str:
    key = credentials.api_key if credentials else f"${_KEY_VARIABLE}"
    body = '{"model": "sandbox", "stream": true, "messages": [{"role": "user", "content": "Hello!"}]}'
    headers = f'-H "Authorization: Bearer {key}" -H "Content-Type: application/json"'
    return f"curl -N {url}/v1/chat/completions {headers} -d '{body}'"


def _openai(url: str, credentials: Credentials | None) -> str:
    key = repr(credentials.api_key) if credentials else f"os.environ[{_KEY_VARIABLE!r}]"
    messages = "[{'role': 'user', 'content': 'Hello!'}]"
    lines = [
        "from openai import OpenAI",
        f"client = OpenAI(base_url='{url}/openai/v1', api_key={key})",
        f"completion = client.chat.completions.create(model='sandbox', messages={messages})",
        "print(completion.choices[0].message.content)",
    ]
    return "\n".join(lines if credentials else ["import os", *lines])


def _python() -> str:
    """Return the interpreter's path, relative to this folder if possible."""
    executable = Path(sys.executable)
    return str(executable.relative_to(Path.cwd()) if executable.is_relative_to(Path.cwd()) else executable)
