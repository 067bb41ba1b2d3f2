"""``python -m fairlead.grid --folder F``: runs a grid without a platform until standard input is closed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairlead.grid.standalone import StandaloneGrid
from fairlead.units import parse_size


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fairlead.grid", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the socket and spilled blocks go")
    parser.add_argument("--tenant", default="tenant")
    parser.add_argument("--quota", default="2GB")
    parser.add_argument("--encrypted", action="store_true", help="encrypt blocks in memory too; reads are then copies")
    given = parser.parse_args()
    running = StandaloneGrid(given.folder)
    try:
        found = running.admit(given.tenant, parse_size(given.quota), encrypted=given.encrypted)
        for name, value in found.items():
            print(f"export {name}={value}", flush=True)
        sys.stdin.read()
    finally:
        running.close()


if __name__ == "__main__":
    main()
