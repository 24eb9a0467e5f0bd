"""Counters of choices that say their prompt again first, as text requests with `echo` ask for; they leave it
out; pure.

What a choice says is compared with its prompt: an upstream may ignore `echo`, and then all that it says is
its own.
"""

from chatapi.wire import tokens
from chatapi.wire.generation_request import Texts

ADDED_SPACES = 8
"""White space that an echo may have beyond the prompt's: tokenizers add some. It is bounded, for it may be
all that a model says.
"""


class _Echoing(tokens.Counter):
    echoed_pieces = 0
    """Deltas that only say the prompt."""


class EchoCounters(dict[int, _Echoing]):
    """The counters of a request's choices, each made when its choice begins to speak."""

    def __init__(self, prompt: Texts, choices_per_prompt: int, *, is_whole: bool) -> None:
        """`is_whole`: the counters are given all that the choices say, from its beginning."""
        super().__init__()
        self._prompts = prompt.prompts
        self._choices_per_prompt = choices_per_prompt
        self._is_whole = is_whole

    def __missing__(self, index: int) -> _Echoing:
        counter = self[index] = self._new(self._prompts[index // self._choices_per_prompt])
        return counter

    @property
    def pieces(self) -> int:
        """Deltas of all choices that only say their prompts."""
        return sum(
            counter.echoed_pieces for counter in list(self.values())
        )  # a heartbeat asks while another thread may count

    def _new(self, prompt: str | list[int]) -> _Echoing:
        if isinstance(prompt, str):
            return _ReadEcho(prompt) if self._is_whole else _UnreadEcho(tokens.count(prompt))
        return _UnreadEcho(len(prompt))


class _ReadEcho(_Echoing):
    """Leaves out of a choice what it says of its prompt, word by word."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self._prompt = prompt
        self._said_chars = 0
        self._spare_spaces = ADDED_SPACES
        self._is_echoing = bool(prompt)

    def add(self, text: str) -> None:
        """Append one delta."""
        if not self._is_echoing:
            super().add(text)
        elif generated := text[self._echoed_chars(text) :]:
            super().add(generated)
        else:
            self.echoed_pieces += 1

    def _echoed_chars(self, text: str) -> int:
        """How much of the text's beginning is the prompt's next words. It ends with the prompt, or where it
        is no echo.
        """
        said = self._said_chars
        expected = self._prompt[said : said + len(text)]
        if text.startswith(expected):  # nearly always, and a prompt may be long
            self._said_chars += len(expected)
            echoed = len(expected)
        else:
            echoed = self._compare(text)
        self._is_echoing = echoed == len(text) and self._said_chars < len(self._prompt)
        return echoed

    def _compare(self, text: str) -> int:
        """The same, character by character, where white space may differ. Of a long text `heavy_work` has it
        done aside.
        """
        for at, character in enumerate(text):
            is_space = character.isspace()
            if not is_space:
                self._skip_spaces()
            expected = self._prompt[self._said_chars : self._said_chars + 1]
            if expected and (expected == character or (is_space and expected.isspace())):
                self._said_chars += 1
            elif expected and is_space and self._spare_spaces:
                self._spare_spaces -= 1
            else:
                return at
        return len(text)

    def _skip_spaces(self) -> None:
        while self._prompt[self._said_chars : self._said_chars + 1].isspace():
            self._said_chars += 1


class _UnreadEcho(_Echoing):
    """Leaves out of a choice as many tokens as its prompt has.

    For prompts that can't be compared: token ids, whose text only the upstream's vocabulary tells, and where
    the beginning of what was said is lost. A choice that has spoken has said one token of its own, so that
    none is free where the upstream ignores `echo`.
    """

    def __init__(self, prompt_tokens: int) -> None:
        super().__init__()
        self._prompt_tokens = prompt_tokens

    def add(self, text: str) -> None:
        """Append one delta."""
        super().add(text)
        self.echoed_pieces = min(self.echoed_pieces + 1, self._prompt_tokens)

    @property
    def tokens(self) -> int:
        """Tokens beyond the prompt's."""
        said = super().tokens
        return max(said - self._prompt_tokens, min(said, 1))
