"""What tests of backups share: a home as a platform leaves it, and looks into stores and archives."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select, text

from fairlead.control.backup import table_rows
from fairlead.control.records import GenerationPhase, JobPhase
from fairlead.control.store import Store, audit, events, generations, jobs, ledger, schema, tenants
from fairlead.control.store.connections import connect
from fairlead.home import Home
from fairlead.specs import TenantSpec

from . import made
from .stores import Opened, a_job, run


def platform_home(root: Path) -> Home:
    """A home as a platform leaves it: two tenants, jobs in every phase, their files, and odd ones among them."""
    home = Home(root)
    home.create()
    store = Store.open(f"sqlite:///{home.database}")
    run(store.acquire_lease("test", 1e9))
    fill(Opened(store))
    run(store.release_lease())
    run(store.close())
    (home.run / "nodes.json").write_text('[{"name":"node-0","cpu":1,"memory_bytes":5,"devices":1}]')
    profile = {"url": "http://x", "token": "fl_a_b0123456789abcdef", "pid": 1}
    (home.root / "profile.json").write_text(json.dumps(profile))
    home.secret_key.write_text("the key\n")
    put(home.bundles / "vision" / "abc.tar.gz", b"code")
    put(home.job("runs-1") / "snapshots" / "snapshot-40.pt", b"state of step 40")
    put(home.job("runs-1") / "snapshots" / ".snapshot-41.pt.7.tmp", b"half")
    put(home.job("runs-1") / "code" / "train.py", b"unpacked again")
    put(home.job("done-1") / "snapshots" / "snapshot-9.pt", b"nobody needs it any more")
    put(home.job("done-1") / "output" / "deep" / "model.safetensors", bytes(300_000))
    put(home.job("done-1") / "logs" / "w0.log", b"hello\n")
    return home


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def fill(db: Opened) -> None:
    def work(conn: Connection) -> None:
        for name in ("vision", "text"):
            tenants.insert(conn, TenantSpec(name=name, weight=2.5))
        for name, phase, then in (
            ("runs", JobPhase.RUNNING, None), ("done", JobPhase.SUCCEEDED, None), ("waits", JobPhase.QUEUED, None),
            ("ends", JobPhase.STOPPING, JobPhase.SUCCEEDED), ("yields", JobPhase.STOPPING, JobPhase.QUEUED),
        ):  # fmt: skip
            job = a_job(name, id=f"{name}-1", phase=phase, then=then, loss=float("inf"), speeds={2: 7.5}, generation=1)
            jobs.insert(conn, job, {"name": name, "env": {"ä": "\u2028 \U0001f600"}}, {"team": "x"}, name, "digest")
        for job_id, phase in (("runs-1", GenerationPhase.RUNNING), ("done-1", GenerationPhase.ENDED)):
            generations.insert(conn, made.generation(("w0", "node-0"), ("w1", "node-1"), job=job_id, phase=phase))
        events.append(conn, time_s=1.0, kind="k", text="t", facts={"deep": [1, {"x": None}]})
        events.append(conn, time_s=2.0, kind="k", text="forgotten later")
        audit.append(conn, time_s=1.0, actor="a", action="b", target="c")
        ledger.append(conn, [made.usage("vision", 2, 10.0, 20.0)])
        secret = {"tenant": "vision", "name": "KEY", "ciphertext": b"\x00\xff", "changed_s": 1.0, "changed_by": "tok"}
        conn.execute(insert(schema.secrets), secret)
        conn.execute(text("DELETE FROM events WHERE id = 2"))

    db.write(work)


def content(url: str) -> dict[str, list[Any]]:
    engines = connect(url)
    with engines.reader.connect() as conn:
        found = {
            table.name: [tuple(row) for row in conn.execute(select(table).order_by(*table.primary_key.columns))]
            for table in table_rows.tables(conn)
        }
    engines.dispose()
    return found


def read(url: str, work: Any, *arguments: Any) -> Any:
    engines = connect(url)
    with engines.reader.connect() as conn:
        found = work(conn, *arguments)
    engines.dispose()
    return found


def repacked(source: Path, target: Path, change: Any) -> Path:
    """The archive with one member's bytes changed, or left out where the change says None."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old.getmembers():
            file = old.extractfile(member)
            data = change(member, file.read() if file else b"")
            if data is not None:
                member.size = len(data) if member.isreg() else 0
                new.addfile(member, io.BytesIO(data))
    return target
