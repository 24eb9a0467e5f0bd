"""Counts the tokens of choices that repeat their prompt first (`echo` in text requests), without the prompt.

The text of a choice is compared with its prompt, because an upstream may ignore `echo`: then all of the text
is generated.
"""

from chatapi.wire import tokens
from chatapi.wire.prompts import Texts

# How much white space an echo may have beyond the prompt's: tokenizers add some. It is bounded, because a
# model may generate only white space.
ADDED_SPACES = 8


class EchoCounters(dict[int, "_ReadEcho | _UnreadEcho"]):
    """The counters of a request's choices; each is made with the first delta of its choice."""

    def __init__(self, prompt: Texts, choices_per_prompt: int, *, is_whole: bool) -> None:
        """`is_whole` is False if the beginning of the answer is lost."""
        super().__init__()
        self._prompts = prompt.prompts
        self._choices_per_prompt = choices_per_prompt
        self._is_whole = is_whole

    def __missing__(self, index: int) -> "_ReadEcho | _UnreadEcho":
        prompt = self._prompts[index // self._choices_per_prompt]
        if isinstance(prompt, str) and self._is_whole:
            counter: _ReadEcho | _UnreadEcho = _ReadEcho(prompt)
        else:
            counter = _UnreadEcho(tokens.count(prompt) if isinstance(prompt, str) else len(prompt))
        self[index] = counter
        return counter

    @property
    def pieces(self) -> int:
        """The number of deltas of all choices that only repeat their prompts."""
        # A copy, because the heartbeat reads while another thread may add a counter.
        return sum(counter.echoed_pieces for counter in list(self.values()))


class _ReadEcho(tokens.Counter):
    """Leaves out the beginning of a choice that equals its prompt."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.echoed_pieces = 0
        """The number of deltas that only repeat the prompt."""
        self._prompt = prompt
        self._matched_chars = 0
        self._spare_spaces = ADDED_SPACES
        self._is_echoing = bool(prompt)

    def add(self, text: str) -> None:
        if not self._is_echoing:
            super().add(text)
        elif generated := text[self._echoed_chars(text) :]:
            super().add(generated)
        else:
            self.echoed_pieces += 1

    def _echoed_chars(self, text: str) -> int:
        """Return how many characters of the text continue the prompt; any others end the echo."""
        matched = self._matched_chars
        expected = self._prompt[matched : matched + len(text)]
        if text.startswith(expected):  # quick, because a prompt may be long
            self._matched_chars += len(expected)
            echoed = len(expected)
        else:
            echoed = self._compare(text)
        self._is_echoing = echoed == len(text) and self._matched_chars < len(self._prompt)
        return echoed

    def _compare(self, text: str) -> int:
        """Compare by character, as white space may differ; long texts are added in `heavy_work`."""
        for at, character in enumerate(text):
            is_space = character.isspace()
            while not is_space and self._prompt[self._matched_chars : self._matched_chars + 1].isspace():
                self._matched_chars += 1
            expected = self._prompt[self._matched_chars : self._matched_chars + 1]
            if expected and (expected == character or (is_space and expected.isspace())):
                self._matched_chars += 1
            elif expected and is_space and self._spare_spaces:
                self._spare_spaces -= 1
            else:
                return at
        return len(text)


class _UnreadEcho(tokens.Counter):
    """Leaves out of a choice as many tokens as its prompt has.

    It is for prompts that can't be compared: token ids, whose text only the upstream's vocabulary has, and
    answers whose beginning is lost. A choice with any text counts as one token at least, so that none is free
    if the upstream ignores `echo`.
    """

    def __init__(self, prompt_tokens: int) -> None:
        super().__init__()
        self.echoed_pieces = 0
        """The number of deltas that may repeat the prompt: one for each of its tokens."""
        self._prompt_tokens = prompt_tokens

    def add(self, text: str) -> None:
        super().add(text)
        self.echoed_pieces = min(self.echoed_pieces + 1, self._prompt_tokens)

    @property
    def tokens(self) -> int:
        """The tokens beyond the prompt's."""
        counted = super().tokens
        return max(counted - self._prompt_tokens, min(counted, 1))
