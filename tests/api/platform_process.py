"""A real platform in a process of its own, with two doors: the usual one, and one with tight limits."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from fairlead.api.app import create_app
from fairlead.api.limits import Limits
from fairlead.api.server import serve
from fairlead.control.serve import Opened, Ready, Settings, run
from fairlead.control.service import Platform

TIGHT = Limits(requests_per_s=5.0, burst=10, streams=2, keep_alive_s=0.2)


async def two_doors(platform: Platform, host: str, port: int, opened: Opened) -> None:
    def tight_opened(tight_port: int) -> None:
        print(json.dumps({"tight": f"http://{host}:{tight_port}"}), flush=True)

    patient = {"failed_logins": 1_000_000} if "--patient" in sys.argv else {}  # with a fuzzer, which guesses all day
    usual = create_app(platform, limits=Limits(keep_alive_s=0.5, **patient))
    tight = create_app(platform, limits=TIGHT)
    await asyncio.gather(serve(tight, host, 0, tight_opened), serve(usual, host, port, opened))


def ready(news: Ready) -> None:
    print(json.dumps({"url": news.url, "token": news.admin_token}), flush=True)


if __name__ == "__main__":
    sys.exit(run(Settings(home=Path(sys.argv[1]), nodes="2"), ready, two_doors))
