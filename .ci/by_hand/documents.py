"""The documents that are followed: their code blocks, and the commands that their sentences quote."""

import re
import textwrap
from pathlib import Path

from by_hand.machine import fail

ROOT = Path(__file__).resolve().parent.parent.parent


class Document:
    """A file: its code blocks, and the commands that its sentences quote."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (ROOT / name).read_text()
        rest = re.sub(r"^```.*?^```$", "", self.text, flags=re.M | re.S)
        indented = re.findall(r"(?:^    .*\n|^\n(?=    ))+", rest, re.M)
        self.blocks = [textwrap.dedent(block).strip("\n") + "\n" for block in indented]
        self.blocks += re.findall(r"^```[^\n]*\n(.*?)^```$", self.text, re.M | re.S)

    def block(self, line: str) -> str:
        """Return the code block that contains the text; exit unless there is exactly one."""
        found = [block for block in self.blocks if line in block]
        if len(found) != 1:
            fail(f"{self.name} has {len(found)} code blocks with: {line}")
        return found[0]

    def quoted(self, command: str) -> str:
        """Return the command; exit unless a sentence of the document quotes it."""
        if f"`{command}`" not in re.sub(r"\s+", " ", self.text):
            fail(f"{self.name} does not quote: {command}")
        return command


OPERATIONS, METRICS, BACKUP, SIGN_IN, TRACING, PAYMENT = (
    Document(f"docs/{name}.md")
    for name in ("operations", "metrics", "backup", "sign-in", "tracing", "payment")
)
KUBERNETES = Document("deploy/kubernetes/README.md")
