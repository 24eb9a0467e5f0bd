"""The tests' own environment, set before Django reads it: a pytest plugin, named in pyproject.toml.

`DATABASE_URL` is left as it is: the same tests run on SQLite and on PostgreSQL.
"""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Generator

import pytest

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share what the first process made
    state_dir = tempfile.mkdtemp(prefix="chatapi-tests-")
    atexit.register(shutil.rmtree, state_dir, ignore_errors=True)
    os.environ |= {
        "CHATAPI_STATE_DIR": state_dir,
        "MIGRATED_DATABASE_FOLDER": os.path.join(state_dir, "migrated"),
        "CHATAPI_SECRET_KEY": "only-for-tests-" + "x" * 50,
        "CHATAPI_KEY_PEPPER": "only-for-tests-" + "y" * 50,
        # All wrong keys of all tests come from one address. Tests of this limit set it.
        "CHATAPI_FAILED_AUTHENTICATIONS_PER_MINUTE": "0",
        "CHATAPI_REFUSED_BODY_BYTES_PER_MINUTE": "0",
    }


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause Python's garbage collector while ten thousand tests are collected, and exempt them from it later:
    all of them live until the end, and each full collection would look at them for 0.4 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
