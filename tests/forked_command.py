"""`flowsched` for a shell, see `forks.command`: `python -I -S forked_command.py SOCKET WORD …`. It starts fast."""

import json
import os
import signal
import socket
import sys

path, *words = sys.argv[1:]
order = {
    "words": words, "cwd": os.getcwd(), "env": dict(os.environ), "module": "flowsched", "constants": {}, "open_files": 0,
}  # fmt: skip
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19)
connection.connect(path)
forwarded = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
socket.send_fds(connection, [json.dumps(order).encode()], [0, 1, 2])
pid = int(connection.recv(64))
for each in forwarded:
    signal.signal(each, lambda number, _frame: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
code = int(connection.recv(64))
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
