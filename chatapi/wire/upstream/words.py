"""Hides the parts of an upstream's error message that a client must not read.

Shown are plain words, numbers, parameters that clients may send, and paths into them. All else is hidden:
URLs, hosts, file paths, keys, ids, versions. A password or a host may be a plain word, so a message about
passwords, hosts and other internals is not shown at all.
"""

import re
from functools import lru_cache
from typing import Final

from chatapi.wire.parameters import ENGINE_PARAMETERS
from chatapi.wire.prompts import PROMPTS
from chatapi.wire.upstream.openai_request import PARAMETERS

MAX_MESSAGE_CHARACTERS: Final = 500
MAX_NAME_CHARACTERS: Final = 64
HIDDEN: Final = "[hidden]"

_MAX_WORD_CHARS = 24
_ABOUT_INSIDES = re.compile(
    r"""<[a-z!/?] | <\s*(?:!doctype|html|head|body|script)\b  # a page of a server in between, about itself
      | traceback | \bstack\ ?trace | \bpanic: | \bgoroutine\b  # a program's
      | \bfile\ " | \bline\ \d+,\ in\b | \bat\ \S+\ ?\(\S*:\d+
      | \berrno\b | \bconnect(?:ion|ing)?\ (?:to|refused|reset|error|timed)
      | \bhost(?:s|name)?\b | \blocalhost\b | \bnameserver\b | \bdns\b
      | \bsql | \bpsycopg | \bsqlite | \bdsn\b | \bdatabase\b | \bsocket\b | \bredis | \bcuda\b | \bnccl\b
      | \bpass(?:word|wd|phrase)|\bpwd\b | \bsecrets?\b | \bcredentials?\b | \bauthorization\b
      | \busernames?\b | \blog(?:in|on)\b
      | \b(?:private|access|auth)[ _-]?(?:key|token)
    """,
    re.I | re.X,
)
_SECRET = re.compile(
    r"""\bbearer\s+\S+
      | \b(?:sk|pk|rk|ck|gsk|hf|xai|org|proj|ghp|xox[a-z]|eyj)[-_][\w-]{4,}
      | \b[a-z][a-z0-9+.-]{1,15}://\S+
    """,
    re.I | re.X,
)
# Between these runs are white space, quotes, brackets, and text in scripts other than Latin.
_RUN = re.compile(r"[A-Za-z0-9_.:/\\@=+%~#&?!$*^\[\]-]+")
_AROUND = re.compile(r"(\[*+)(.*?)([.:!?*\]]*)", re.DOTALL)

_SEGMENT = r"[A-Za-z]+(?:_[A-Za-z]+){0,5}"
_CODE = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+){0,7}|\d{1,6}")
_NAME = re.compile(r"[a-z]+(?:_[a-z]+){0,3}")
_WORD = re.compile(r"[A-Z]?[a-z]*(?:[A-Z]+[a-z]*){0,2}")
_NUMBER = re.compile(
    r"[+-]?\d{1,12}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?(?:%|[kmg](?:i?b)?|x\d{1,6}|-\d{1,9}(?:\.\d{1,6})?)?",
    re.I,
)
_PATH = re.compile(rf"({_SEGMENT})(?:\[\d{{0,6}}\]|\.\d{{1,6}}|\.base64|\.{_SEGMENT})*")
_PAIR = re.compile(rf"({_SEGMENT})[=:](.*)")
_ENDPOINT = re.compile(rf"/v1(?:{'|'.join(prompt.openai_path for prompt in PROMPTS)})?")
_HYPHENATED = re.compile(r"([A-Za-z]+|\d{1,9})((?:-[A-Za-z]+){1,3})")
_SLASHED = re.compile(r"([a-z]+)/[a-z]{1,16}")

_PARAMETERS: Final = PARAMETERS | ENGINE_PARAMETERS
# Claude Code reads Anthropic's in its messages: after some it repeats a request without its thinking.
_NAMES: Final = _PARAMETERS | frozenset(
    """
    additionalProperties anyOf arguments body budget_tokens cached_tokens code completion
    completion_tokens const content context_length data detail enum file format function functions id
    image image_url include_usage index input input_audio input_schema input_type input_value items
    json_object json_schema loc maxItems maxLength maxLogprobs max_length max_model_len media_type
    message minItems minLength msg n_ctx n_prompt_tokens name object output_config output_format
    parameter parameters pattern prefixItems prompt_tokens properties query redacted_thinking request
    required role schema search_result stop_sequences strict string_type system text token tool_call_id
    tool_calls tool_result tool_use tool_use_id total_tokens type uniqueItems url value
    """.split()  # noqa: SIM905
)
# Names that may be shown with their value (`name=value`): the value comes from the request.
_PAIRED: Final = _NAMES - {"file", "id", "model", "name", "url", "user"}
_BEFORE_HYPHEN: Final = frozenset(
    """
    auto built case co comma cross double empty end even fine full half high human in left length line
    long low many max mid min mini multi new no non null off one out over per pre re read real right run
    self semi server short single six so sub text three time token tool top trailing two type un under up
    user utf value well white zero
    """.split()  # noqa: SIM905
)
_AFTER_HYPHEN: Final = frozenset(
    """
    based bit case free fold in item known length level like limit only out sensitive size token up valued
    """.split()  # noqa: SIM905
)
_BEFORE_SLASH: Final = frozenset(
    """
    and application assistant audio false image input json max min string system text true user video yes
    """.split()  # noqa: SIM905
)
_ABBREVIATED: Final = frozenset({"e.g", "i.e", "w.r.t", "a.k.a"})


def harmless(message: str) -> str:
    """Return the message as a client may read it: one line of at most `MAX_MESSAGE_CHARACTERS`; empty if it
    can't be shown.
    """
    if _ABOUT_INSIDES.search(message):
        return ""
    printable = "".join(character if character.isprintable() else " " for character in message)
    shown = _RUN.sub(_judged, _SECRET.sub(HIDDEN, printable))
    return " ".join(shown.split())[:MAX_MESSAGE_CHARACTERS]


def parameter(value: object) -> str | None:
    """Return the value if it is a parameter's name or a path into one, else None."""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARACTERS:
        return None
    return value if _is_path(value) or _NAME.fullmatch(value) else None


def code(value: object) -> str | None:
    """Return the value if it may be an error's code (words, or a short number), else None."""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARACTERS:
        return None
    return value if _CODE.fullmatch(value) else None


def _judged(run: re.Match[str]) -> str:
    # The pattern matches any text.
    opening, core, closing = _AROUND.fullmatch(run[0]).groups()  # type: ignore[union-attr]
    if core.count("[") > core.count("]") and closing.startswith("]"):  # the index of a path
        core, closing = core + "]", closing[1:]
    return run[0] if _is_allowed(core) else opening + HIDDEN + closing


@lru_cache(maxsize=1024)
def _is_allowed(core: str) -> bool:
    if not any(map(str.isalnum, core)):
        return "\\" not in core and "//" not in core
    if (
        _is_word(core)
        or _NUMBER.fullmatch(core)
        or core in _ABBREVIATED
        or _ENDPOINT.fullmatch(core)
        or _is_path(core)
    ):
        return True
    if pair := _PAIR.fullmatch(core):
        return pair[1] in _PAIRED and (not pair[2] or _is_allowed(pair[2]))
    if slashed := _SLASHED.fullmatch(core):
        return slashed[1] in _BEFORE_SLASH
    hyphenated = _HYPHENATED.fullmatch(core)
    return hyphenated is not None and _is_compound(
        hyphenated[1].lower(), hyphenated[2].rpartition("-")[2].lower()
    )


def _is_word(core: str) -> bool:
    return len(core) <= _MAX_WORD_CHARS and (_WORD.fullmatch(core) is not None or core in _NAMES)


def _is_compound(first: str, last: str) -> bool:
    return first.isdigit() or first in _BEFORE_HYPHEN or last in _AFTER_HYPHEN


def _is_path(core: str) -> bool:
    found = _PATH.fullmatch(core)
    return found is not None and found[1] in _NAMES
