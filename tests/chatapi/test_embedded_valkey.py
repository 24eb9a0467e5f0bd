"""The embedded Valkey listens where its clients connect, even when the state folder's name is long or odd."""

from pathlib import Path
from urllib.parse import unquote

import pytest

from chatapi.serving import embedded_valkey


def test_the_socket_is_in_the_state_folder() -> None:
    assert embedded_valkey.socket_path(Path("/srv/chatapi")) == Path("/srv/chatapi/valkey.sock")


def test_a_path_too_long_for_a_socket_is_replaced_by_a_short_one_of_its_own() -> None:
    long, other = Path("/srv") / ("x" * 100), Path("/srv") / ("y" * 100)
    assert len(bytes(embedded_valkey.socket_path(long))) <= embedded_valkey.MAX_SOCKET_PATH_BYTES
    assert embedded_valkey.socket_path(long) != embedded_valkey.socket_path(other)


def test_the_limit_counts_bytes_not_letters() -> None:
    assert not embedded_valkey.socket_path(Path("/srv") / ("ü" * 50)).is_relative_to("/srv")


def test_its_url_quotes_what_a_url_must() -> None:
    url = embedded_valkey.url(Path("/srv/100% of it?"))
    assert url == "unix:///srv/100%25%20of%20it%3F/valkey.sock"
    assert unquote(url).endswith("/100% of it?/valkey.sock")


def test_a_socket_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    state_dir = tmp_path / ("x" * 100)
    embedded_valkey.prepare(state_dir)
    folder = embedded_valkey.socket_path(state_dir).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("os.getuid", lambda: 4711)
    folder.rename(embedded_valkey.socket_path(state_dir).parent)
    with pytest.raises(PermissionError, match="belongs to another user"):
        embedded_valkey.prepare(state_dir)


def test_it_never_evicts_and_never_listens_on_a_port(tmp_path: Path) -> None:
    command = embedded_valkey.command(tmp_path)
    assert Path(command[0]).exists()
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--port") + 1] == "0"


def test_it_forgets_what_it_wrote_even_half_of_it(tmp_path: Path) -> None:
    """A server that is killed while it writes leaves half a file."""
    kept = tmp_path / "chatapi.sqlite3"
    for path in (embedded_valkey.dump_path(tmp_path), tmp_path / "temp-4711.rdb", kept):
        path.write_text("said")
    embedded_valkey.remove_dumps(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
    embedded_valkey.remove_dumps(tmp_path)
