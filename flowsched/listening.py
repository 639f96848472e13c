"""The sockets that a service listens on: it binds them itself, or takes them over from the process that starts it.

A listening socket that outlives the service keeps its clients: while no service accepts, the kernel completes connections and
queues their requests, and the next service answers. systemd hands sockets over in this form (`LISTEN_FDS`), and so does
`supervisor`. Knows nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from typing import Final

from flowsched.errors import ConfigurationError

#: The number of the first inherited socket (sd_listen_fds(3)).
FIRST_FD: Final = 3
#: Connections that the kernel keeps while no service accepts. Linux cuts it to net.core.somaxconn (4,096).
BACKLOG: Final = 1024
#: A killed service may still hold the port for a moment.
PORT_WAIT_S: Final = 3.0


def inherited() -> list[socket.socket]:
    """The sockets that another program hands over to this process; empty if there are none.

    Removes the variables that announce them, so that no child takes the sockets for its own.

    Raises:
        ConfigurationError: One of them is not a listening TCP socket.
    """
    count, pid = os.environ.get("LISTEN_FDS", ""), os.environ.get("LISTEN_PID", "")
    if not count.isdecimal() or pid != str(os.getpid()):
        return []
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    return [_taken(fd) for fd in range(FIRST_FD, FIRST_FD + int(count))]


def _taken(fd: int) -> socket.socket:
    try:
        sock = socket.socket(fileno=fd)
        good = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
        good = good and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    except OSError as error:
        raise ConfigurationError(
            f"LISTEN_FDS hands over descriptor {fd}, which is no socket ({error.strerror})"
        ) from None
    if not good:
        raise ConfigurationError(
            f"LISTEN_FDS hands over descriptor {fd}, which is not a listening TCP socket: use ListenStream=ADDRESS:PORT"
        )
    sock.set_inheritable(False)
    return sock


def bound(host: str, port: int, wait_s: float = PORT_WAIT_S) -> list[socket.socket]:
    """Listen on every address of a host. Blocks for at most `wait_s` while another process has the port.

    Raises:
        ConfigurationError: This process cannot listen there.
    """
    end = time.monotonic() + wait_s
    while True:
        try:
            return _bound(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise ConfigurationError(
                    f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
                ) from error
        time.sleep(0.05)


def _bound(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = undo.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port == 0 and made:  # all addresses of a host have one port
                address = (address[0], made[0].getsockname()[1], *address[2:])
            sock.bind(address)
            sock.listen(BACKLOG)
            made.append(sock)
        undo.pop_all()
    return made


def notify(state: str) -> None:
    """Report the state of this process to systemd (sd_notify(3)): `READY=1`, `STOPPING=1`. Without systemd it does nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        sock.sendall(state.encode())
