"""Run by a job of the victim: holds a secret, files, sockets, shared memory and the grid until it is told to end."""

import ctypes
import json
import os
import socket
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

output = Path(os.environ["FAIRLEAD_OUTPUT"])
secret = os.environ["CANARY"]
(output / "answer.txt").write_text(f"the victim's answer: {secret}")
print("my secret is", secret, flush=True)

port = socket.create_server(("127.0.0.1", 0))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0" + sys.argv[1])
abstract.listen()
path = output / "victim.sock"
named = socket.socket(socket.AF_UNIX)
named.bind(os.path.relpath(path))
named.listen()
shared = shared_memory.SharedMemory(name=sys.argv[1], create=True, size=4096)
shared.buf[: len(secret)] = secret.encode()
ctypes.CDLL(None).shmget(int(sys.argv[2]), 64, 0o1666)
grid = socket.socket(socket.AF_UNIX)
grid.connect(os.environ["FAIRLEAD_GRID"])  # the node's grid starts when somebody knocks
facts = {"port": port.getsockname()[1], "socket": str(path)}
(output / "ready.tmp").write_text(json.dumps(facts))
(output / "ready.tmp").rename(output / "ready.json")
while not (output / "end").exists():
    time.sleep(0.05)
