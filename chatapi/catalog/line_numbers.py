"""Finds the line of a path such as `models[1].price.input_per_mtok` in a catalog file, for error messages."""

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=")
_LAST_STEP = re.compile(r"(\[\d+\]|\.?[^.\[]+)\Z")


def line_of(text: str, path: str) -> int | None:
    """Return the line, from 1, of the path or of the nearest table around it; None if neither is found."""
    # The first line of each table, and of each key at the start of a line.
    lines: dict[str, int] = {}
    table, counts = "", dict[str, int]()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            table = _resolved(header[2], counts, is_array=header[1] == "[[")
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(f"{table}.{key[1]}".removeprefix("."), number)
    while path and path not in lines:
        path, is_shorter = _LAST_STEP.subn("", path)
        if not is_shorter:
            return None
    return lines.get(path)


def _resolved(name: str, counts: dict[str, int], *, is_array: bool) -> str:
    """Return a table's name with the index of each of its arrays; `counts` has each array's length so far."""
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
