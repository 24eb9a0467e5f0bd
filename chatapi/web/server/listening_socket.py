"""The listening socket, which one process opens and all web processes of a machine may share."""

import socket

# Connections that the kernel completes while the processes are busy; with Daphne's 50 a burst waits for
# retransmissions.
ACCEPT_BACKLOG = 4096

# The kernel's buffer for a response that its client does not read.
#
# The default grows to megabytes of work for clients that read nothing; this size allows 2 MB/s to the other
# side of the world.
SEND_BUFFER_BYTES = 256 * 1024


def listen(host: str, port: int, *, user_timeout_seconds: float) -> socket.socket:
    """Open the listening socket, whose options accepted sockets inherit on Linux; port 0 takes any free port.

    Raises OSError if the address cannot be bound, with errno EADDRINUSE if another process holds it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=ACCEPT_BACKLOG)
    _prepare(listener, user_timeout_seconds)
    return listener


def inherited(descriptor: int, *, user_timeout_seconds: float) -> socket.socket:
    """Return the listening socket that the parent process opened under this descriptor.

    Raises OSError if the descriptor is not one.
    """
    listener = socket.socket(fileno=descriptor)
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.detach()
        raise OSError("it is not a listening socket")
    listener.set_inheritable(False)
    _prepare(listener, user_timeout_seconds)
    return listener


def _prepare(listener: socket.socket, user_timeout_seconds: float) -> None:
    """Set the options, also of a socket that a process manager has opened."""
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    # TCP_USER_TIMEOUT limits how long bytes, or the keep-alive probes of a silent stream, stay without an
    # acknowledgement. It also ends a client that reads nothing and whose buffer is full, for which Linux has
    # no separate limit.
    options = {
        "TCP_NODELAY": 1,
        "TCP_USER_TIMEOUT": round(user_timeout_seconds * 1000),
        "TCP_KEEPIDLE": max(1, round(user_timeout_seconds / 2)),
        "TCP_KEEPINTVL": max(1, round(user_timeout_seconds / 4)),
    }
    for name, value in options.items():
        if hasattr(socket, name):  # some systems lack some of them
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
