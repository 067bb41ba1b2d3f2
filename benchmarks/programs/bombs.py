"""Wants all of one thing: processes, memory, disk, log, messages or cores."""

import os
import sys
import time


def forks() -> None:
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)


def memory() -> None:
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)) * 16)


def disk() -> None:
    block, number = os.urandom(1 << 20), 0
    while True:
        with open(f"{os.environ['FAIRLEAD_OUTPUT']}/{number}", "wb") as file:  # noqa: PTH123 (plainly)
            for _ in range(64):
                file.write(block)
            os.fsync(file.fileno())
        number += 1


def log() -> None:
    line = "x" * 4095 + "\n"
    while True:
        sys.stdout.write(line)


def cores() -> None:
    for _ in range(8):
        if os.fork() == 0:
            break
    while True:
        pass


if __name__ == "__main__":
    globals()[sys.argv[1]]()
