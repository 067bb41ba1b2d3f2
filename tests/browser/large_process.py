"""The real control plane over two hundred nodes of paper and a thousand jobs, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from fairlead.api.server import open_door
from fairlead.control import serve
from fairlead.control.records import Role, Token
from fairlead.control.service.submission import new_job
from fairlead.control.store import jobs, tenants
from fairlead.control.store.engine import Store
from fairlead.home import Home
from fairlead.specs import JobSpec, TenantSpec
from tests.browser.paper import PaperBackend

NODES, JOBS = 200, 1000
TENANTS = ("vision", "text", "search", "ads", "speech")


async def seed(home: Home) -> None:
    """Jobs as if they had been submitted before this platform was started."""
    home.create()
    store = Store.open(serve.store_url(None, home))
    await store.acquire_lease("seed", 60.0)
    await store.write(_fill)
    await store.release_lease()
    await store.close()


def _fill(connection: Connection) -> None:
    who = Token("seed", None, Role.ADMIN, "", "", time.time())
    teams = [tenants.insert(connection, TenantSpec(name=name)) for name in TENANTS]
    for place in range(JOBS):
        team = teams[place % len(teams)]
        spec = JobSpec.model_validate(
            {"name": f"job-{place}", "tenant": team.name, "run": "train.py:training", "workers": 4,
             "code": f"sha256:{'0' * 64}"}
        )  # fmt: skip
        job = new_job(spec, team, who, time.time() - JOBS + place)
        document = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        jobs.insert(connection, job, document, spec.labels, None, "")


def _paper(*_: Any, **__: Any) -> PaperBackend:
    return PaperBackend(NODES)


def ready(news: serve.Ready) -> None:
    print(json.dumps({"url": news.url, "token": news.admin_token}), flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    asyncio.run(seed(Home(folder)))
    serve.LocalBackend = _paper  # type: ignore[assignment,misc]
    sys.exit(serve.run(serve.Settings(home=folder), ready, open_door))
