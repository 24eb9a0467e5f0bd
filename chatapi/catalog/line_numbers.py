"""On which line of a catalog file a value stands, for error messages: a path such as
`models[1].price.input_per_mtok` in, a line out.
"""

import re
from collections.abc import Iterator

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=")
_LAST_STEP = re.compile(r"(\[\d+\]|\.?[^.\[]+)\Z")


def line_of(text: str, path: str) -> int | None:
    """The line, counted from 1, that the path leads to, or that the nearest table around it begins on; None
    where neither is found.
    """
    lines: dict[str, int] = {}
    for place, number in _places(text):
        lines.setdefault(place, number)
    while path and path not in lines:
        path, is_shorter = _LAST_STEP.subn("", path)
        if not is_shorter:
            return None
    return lines.get(path)


def _places(text: str) -> Iterator[tuple[str, int]]:
    """The path of each table and each key that has a line of its own; what is written inline belongs to its
    key.
    """
    table, counts = "", dict[str, int]()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            table = _resolved(header[2], counts, is_array=header[1] == "[[")
            yield table, number
        elif key := _KEY.match(line):
            yield f"{table}.{key[1]}".removeprefix("."), number


def _resolved(name: str, counts: dict[str, int], *, is_array: bool) -> str:
    """A table's name with the index of each array in it; `counts` has the entries of each array so far, by
    its path.
    """
    *parents, last = name.split(".")
    path = ""
    for parent in parents:
        path = f"{path}.{parent}".removeprefix(".")
        path += f"[{counts[path] - 1}]" if path in counts else ""
    path = f"{path}.{last}".removeprefix(".")
    if not is_array:
        return path
    counts[path] = counts.get(path, 0) + 1
    return f"{path}[{counts[path] - 1}]"
