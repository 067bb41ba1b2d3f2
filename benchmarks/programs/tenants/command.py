"""A command that lasts so long, as one that serves, and logs that it is at work: python command.py SECONDS LOG."""

from __future__ import annotations

import os
import sys
import time

TICK_S = 0.25


def main(lasts_s: float, log: str) -> None:
    until_s = time.monotonic() + lasts_s
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    while True:
        left_s = until_s - time.monotonic()
        what = "tick" if left_s > 0 else "end"
        os.write(file, f"{time.time():.4f} {os.getpid()} {what}\n".encode())
        if left_s <= 0:
            return
        time.sleep(min(TICK_S, left_s))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
