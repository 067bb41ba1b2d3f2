"""Builds the message by which a node manager has its fork server start a worker: the Start, and open files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead.agent.node import job_folders
from fairlead.agent.node.messages import NodeConfig, Start
from fairlead.agent.sandbox import bwrap_args
from fairlead.agent.zygote.worker_bootstrap import WorkerBootstrap
from fairlead.home import Home


@dataclass(frozen=True, slots=True)
class StartMessage:
    """A Start and the descriptors sent with it."""

    start: Start
    files: list[int]

    def close(self) -> None:
        for descriptor in self.files:
            os.close(descriptor)


def pack(bootstrap: WorkerBootstrap, config: NodeConfig) -> StartMessage:
    """Create the job's folders and the start message; raises CannotStart, or OSError for a fault of the node."""
    spec, home = bootstrap.spec, Home(Path(config.home))
    job_folders.prepare(spec)
    sandboxed = config.isolation == "sandbox" and (os.geteuid() != 0 or bool(spec.uid))
    granted = bwrap_args.grants(spec) if sandboxed else [each for each in map(Path, spec.folders) if each.is_dir()]
    view = None
    if sandboxed:
        view = bwrap_args.view(spec, home, int(config.capacity.get("memory", 1 << 30)))
    bundle = None if spec.bundle is None else home.bundle(spec.tenant, spec.bundle)
    files = [] if bundle is None else [os.open(bundle, os.O_RDONLY | os.O_CLOEXEC)]
    files = [
        memory_file(msgspec.msgpack.encode(bootstrap)),
        *files,
        *([] if view is None else [memory_file(view.arguments)]),
    ]
    mounts_later = view is not None and view.mounts_later
    start = Start(
        key=f"{spec.job}/{bootstrap.worker}", uid=spec.uid, device=bootstrap.device, cpu=spec.cpu,
        memory_bytes=spec.memory_bytes, processes=spec.processes, files=spec.files, disk_bytes=spec.disk_bytes,
        network=spec.network, bundle=bundle is not None, sandboxed=sandboxed, closed=bwrap_args.closed(granted),
        folder=spec.folder if mounts_later else "", memory=str(Path(spec.memory_folder).parent) if mounts_later else "",
        frame="" if view is None else view.frame,
    )  # fmt: skip
    return StartMessage(start, files)


def memory_file(data: bytes) -> int:
    """The data in a memfd: a packet is too small for a job's parameters."""
    descriptor = os.memfd_create("fairlead-letter", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
