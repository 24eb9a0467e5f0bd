"""The mistakes that `make mutations` makes can still be made: the code they change is there, and so are the
tests that notice.
"""

import builtins
import symtable
from pathlib import Path

import pytest

from tests.faults.mutations import MUTATIONS, PROJECT, Mutation


def unknown_names(module: symtable.SymbolTable) -> set[str]:
    """Return the names that the module's code uses, but that nothing defines."""
    known = {
        symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }
    tables, asked = [module], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        asked |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_global() and symbol.is_referenced()
        }
    return asked - known - set(dir(builtins)) - {"__file__", "__name__"}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_code_that_it_breaks_is_there(mutation: Mutation, tmp_path: Path) -> None:
    file = tmp_path / mutation.file
    file.parent.mkdir(parents=True)
    file.write_text((PROJECT / mutation.file).read_text())
    mutation.apply(tmp_path)
    assert mutation.wrong in file.read_text()
    if file.suffix == ".py":  # a mistake that merely raises NameError proves nothing
        assert unknown_names(symtable.symtable(file.read_text(), mutation.file, "exec")) == set()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_tests_that_notice_are_there(mutation: Mutation) -> None:
    for test in mutation.tests:
        file, _, function = test.partition("::")
        assert function.partition("[")[0] in (PROJECT / file).read_text()
