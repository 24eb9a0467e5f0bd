"""Prints figures of how plain the code is: sizes, functions used once, docstrings, comments, inheritance.

    make figures

A mirror, not a gate: nothing fails by these figures.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

PRODUCT = ("accounts", "usage", "chatapi", "manage.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef
LINE_COLUMNS = 110
SMALL_FILE_LINES = 25
VERBS = set(Path(__file__).with_name("verbs.txt").read_text().split())


def main() -> None:
    """Print the table."""
    files = _product_files()
    sources = {path: path.read_text() for path in files}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    lines = [line for source in sources.values() for line in source.splitlines()]
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, Function)]
    once = _used_once(functions, sources.values())
    documented = [doc for node in functions if (doc := ast.get_docstring(node))]
    comments = sum(token.type == tokenize.COMMENT for source in sources.values() for token in _tokens(source))
    small = [
        path
        for path, source in sources.items()
        if path.name != "__init__.py" and len(source.splitlines()) < SMALL_FILE_LINES
    ]
    once_lines = median(map(_lines_of, once))
    lengths = [_lines_of(node) for node in functions]
    rows = {
        "files": len(files),
        "lines of Python, without migrations": len(lines),
        f"lines over {LINE_COLUMNS} columns": sum(len(line) > LINE_COLUMNS for line in lines),
        f"files under {SMALL_FILE_LINES} lines, not __init__": len(small),
        "functions": len(functions),
        "lines of a function: median, longest": f"{median(lengths):g}, {max(lengths)}",
        "functions used once": f"{_percent(len(once), len(functions))}, median {once_lines:g} lines",
        "functions with a docstring": _percent(len(documented), len(functions)),
        "docstrings of functions that begin with a verb": _percent(
            sum(map(_begins_with_verb, documented)), len(documented)
        ),
        "lines of code for each comment": round(len(lines) / max(1, comments)),
        "files that docs/architecture.md names on one request's way in": len(_files_named_on_the_way_in()),
        "levels of our own inheritance": _inheritance_levels(trees),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    print(f"\nThe files under {SMALL_FILE_LINES} lines:", *small, sep="\n  ")


def _product_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *PRODUCT], capture_output=True, text=True, check=True
    ).stdout
    return [
        path for path in map(Path, listed.split()) if path.suffix == ".py" and "migrations" not in path.parts
    ]


def _files_named_on_the_way_in() -> set[str]:
    """Return the project's files that "One request" of docs/architecture.md names.

    `test_way_in.py` checks that none is missing whose function waits or runs when a request is admitted. It
    also counts the files that have run by then, which are far more.
    """
    section = Path("docs/architecture.md").read_text().split("## One request", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(rf"`((?:{'|'.join(PRODUCT)})/[\w/]+\.py)`", section))


def _tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(source).readline)


def _used_once(functions: list[Function], sources: Iterable[str]) -> list[Function]:
    """Return the functions that are named in one other place.

    Frameworks call the decorated ones, and those that extend a framework's method by `super()`.
    """
    names: Counter[str] = Counter()
    extending: set[str] = set()
    for source in sources:
        names.update(token.string for token in _tokens(source) if token.type == tokenize.NAME)
        extending.update(re.findall(r"\bsuper\(\)\.(\w+)", source))
    definitions = Counter(node.name for node in functions)
    return [
        node
        for node in functions
        if not node.decorator_list
        and not node.name.startswith("__")
        and node.name not in extending
        and names[node.name] - definitions[node.name] == 1
    ]


def _lines_of(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _begins_with_verb(docstring: str) -> bool:
    word = re.match(r"[A-Za-z]+", docstring)
    if word is None:
        return False
    name = word[0].lower()
    return bool({name, name.removesuffix("s"), name.removesuffix("es")} & VERBS)


def _inheritance_levels(trees: Mapping[Path, ast.Module]) -> int:
    """Return the length of the longest chain of base classes in this project; exceptions do not count."""
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): trees[path] for path in trees}
    imports = {name: _imported_names(tree) for name, tree in modules.items()}
    bases = {
        (module, node.name): [(module, ast.unparse(base).split("[")[0]) for base in node.bases]
        for module, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def own_bases(name: tuple[str, str]) -> list[tuple[str, str]]:
        return [found for base in bases[name] if (found := resolved(*base)) in bases and found != name]

    def resolved(module: str, name: str) -> tuple[str, str]:
        """Return the module that defines the class, and its name there; follows imports and exports."""
        first, _, rest = name.partition(".")
        if (module, name) in bases or first not in imports.get(module, {}):
            return module, name
        source, imported = imports[module][first]
        return resolved(f"{source}.{imported}", rest) if rest else resolved(source, imported)

    def depth(name: tuple[str, str]) -> int:
        return 1 + max(map(depth, own_bases(name)), default=0)

    def is_exception(name: tuple[str, str]) -> bool:
        return bool(re.search(r"Error|Exception", name[1])) or any(map(is_exception, own_bases(name)))

    return max(depth(name) for name in bases if not is_exception(name)) - 1


def _imported_names(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return the names that `from … import …` binds, each with its module and its name in that module."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


if __name__ == "__main__":
    main()
