"""Runs a campaign of faults: ``python -m tests.chaos.campaign --faults 500 --seed 1 --state FILE``; again goes on."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path

from tests import nursery
from tests.chaos.campaign import state_file
from tests.chaos.campaign.campaign import Campaign
from tests.chaos.campaign.work import Size


def main() -> int:
    """The exit code: 0 when nothing was lost, doubled or left over and all figures hold, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=500, help="so many in all, those of former runs included")
    parser.add_argument("--seed", type=int, default=1, help="decides the kinds of faults and whom they hit")
    parser.add_argument("--state", type=Path, required=True, help="what it remembers; the same file again goes on")
    parser.add_argument("--nodes", type=int, default=4, help="virtual nodes of one device each")
    parser.add_argument("--steps", type=int, default=Size().steps, help="of each training")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what stands still goes on, whoever says stop
    campaign = Campaign(given.state.absolute(), given.seed, given.nodes, Size(steps=given.steps), print)
    try:
        good = campaign.run(given.faults)
    finally:
        nursery.close()
    if good:  # else all is left for whoever looks into it
        shutil.rmtree(state_file.home(given.state.absolute()))
        given.state.replace(given.state.with_name(f"{given.state.name}.done"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
