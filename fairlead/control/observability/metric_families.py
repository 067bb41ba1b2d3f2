"""Declares every metric of the platform: name, kind, labels and meaning (see docs/metrics.md).

Names follow Prometheus and Kueue: base units, ``_total`` for counters, ``_seconds`` and ``_bytes``. Labels have few
values: tenants and nodes come from an administrator, reasons and routes from us; jobs, workers and users are no labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]

QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STARTS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
WAITS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0)
LIVES = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric. ``live`` metrics count from zero at each start; the others are read at a scrape."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    live: bool = False


ALL: list[MetricFamily] = []


def _declare(family: MetricFamily) -> MetricFamily:
    ALL.append(family)
    return family


def _gauge(name: str, help: str, *labels: str) -> MetricFamily:
    return _declare(MetricFamily(f"fairlead_{name}", "gauge", help, labels))


def _total(name: str, help: str, *labels: str) -> MetricFamily:
    """A counter read from the store, so that it continues after a restart."""
    return _declare(MetricFamily(f"fairlead_{name}_total", "counter", help, labels))


def _count(name: str, help: str, *labels: str) -> MetricFamily:
    return _declare(MetricFamily(f"fairlead_{name}_total", "counter", help, labels, live=True))


def _level(name: str, help: str, *labels: str) -> MetricFamily:
    return _declare(MetricFamily(f"fairlead_{name}", "gauge", help, labels, live=True))


def _seconds(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> MetricFamily:
    return _declare(MetricFamily(f"fairlead_{name}_seconds", "histogram", help, labels, buckets, live=True))


# ---------------------------------------------------------------- jobs
JOBS = _gauge("jobs", "Jobs by state.", "tenant", "state")
PENDING = _gauge("pending_jobs", "Jobs that wait, by the reason that the last round gave.", "tenant", "reason")
PENDING_AGE = _gauge("longest_pending_seconds", "How long the oldest waiting job has waited.", "tenant")
SUBMITTED = _count("submitted_jobs", "Jobs that were submitted.", "tenant")
ADMITTED = _count("admitted_jobs", "Times a job was given devices after waiting.", "tenant", "reason")
FINISHED = _count("finished_jobs", "Jobs that ended: succeeded, failed or cancelled.", "tenant", "outcome")
EVICTED = _count("evicted_jobs", "Times a job went back into the queue, by cause.", "tenant", "reason")
PREEMPTED = _count("preempted_jobs", "Times a round took a job's devices away, by the reason it gave.",
                   "tenant", "reason")  # fmt: skip
RESIZED = _count("resized_jobs", "Times a round changed a running job's workers.", "tenant", "reason")
FAILED_ATTEMPTS = _count("failed_attempts", "Attempts that user code ended by failing.", "tenant")
GENERATIONS = _count("started_generations", "Generations of gangs that came to run.", "tenant")
ABANDONED = _count("abandoned_generations", "Generations that could not come up.", "tenant")
LOST_WORKERS = _count("lost_workers", "Workers that died under a running gang.", "tenant")
SLA = _count("sla_decided_jobs", "Ended jobs that had a promise, by whether it was kept or missed.", "tenant", "result")
WAIT = _seconds("admission_wait_time", "From submission, or from going back into the queue, to being given devices.",
                WAITS, "tenant")  # fmt: skip
START = _seconds("generation_start_time", "From the decision to all workers of a generation running.",
                 STARTS, "tenant")  # fmt: skip
FIRST_STEP = _seconds("first_step_time", "From the decision to a generation's first training step.", STARTS, "tenant")
COMPLETION = _seconds("job_completion_time", "From submission to the end (JCT).", LIVES, "tenant", "outcome")
RECOVERY = _seconds("recovery_time", "From the loss of a worker to the next training step (FRT).", STARTS, "tenant")
BLIND = _count("planner_blind_jobs", "Jobs whose model could not be profiled: they run as whole copies.",
               "tenant")  # fmt: skip
SNAPSHOT = _seconds("snapshot_time", "How long a worker took to put a snapshot away.", QUICK, "where")
SNAPSHOT_WAIT = _seconds("snapshot_wait_time", "How long a training step waited for a snapshot.", QUICK, "tenant")

# ---------------------------------------------------------------- decisions
ROUNDS = _count("decision_rounds", "Rounds by result: whether anything changed.", "result")
ROUND_TIME = _seconds("decision_round_duration", "Reading the state, deciding and storing the decisions.", QUICK)
DECISIONS = _count("decisions", "Decisions of all rounds by kind.", "decision")
INTERNAL_ERRORS = _count("internal_errors", "Unexpected errors of the platform's own, by what it was doing.", "reason")
LAST_ROUND = _gauge("last_decision_round_timestamp_seconds", "When the last round was held.")

# ---------------------------------------------------------------- store and leadership
STORE_WRITE = _seconds("store_write_duration", "From asking for a write to its being durable.", QUICK)
STORE_COMMIT = _seconds("store_commit_duration", "One transaction of grouped writes.", QUICK)
STORE_READ = _seconds("store_read_duration", "One consistent read, with its wait for a reader.", QUICK)
STORE_FAILED = _count("store_failed_commits", "Transactions that failed whole.")
STORE_QUEUE = _gauge("store_pending_writes", "Writes that wait for the writer.")
LEADER = _gauge("leader", "1 while this control plane leads.")
EPOCH = _gauge("leader_epoch", "The epoch in which it leads.")
RENEWED = _level("lease_renewed_timestamp_seconds", "When the lease was last renewed.")

# ---------------------------------------------------------------- API
REQUESTS = _count("api_requests", "Requests by route, method and status.", "route", "method", "status")
REQUEST_TIME = _seconds("api_request_duration", "From a request to the end of its answer; of a stream, to its begin.",
                        QUICK, "route", "method")  # fmt: skip
IN_FLIGHT = _level("api_inflight_requests", "Requests under way, streams included.")
LIMITED = _count("api_rate_limited_requests", "Rate-limited requests, by limit: rate, streams or logins.",
                 "reason")  # fmt: skip
STREAMS = _level("api_event_streams", "Event and log streams that are open.")

# ---------------------------------------------------------------- nodes and devices
NODES = _gauge("nodes", "Nodes by state.", "state")
NODE_UP = _gauge("node_up", "1 while the node is reachable.", "node")
NODE_INFO = _gauge("node_info", "What a node is: always 1.", "node", "device_type", "isolation")
NODE_STATUS = _gauge("node_status", "1 for the state that a node is in, 0 for the others.", "node", "state")
DEVICES = _gauge("node_devices", "Devices that a node has.", "node", "device_type")
DEVICES_USED = _gauge("node_devices_used", "Devices of a node that are held by workers.", "node", "device_type")
NODE_CORES = _gauge("node_cpu_cores", "Cores that a node can give.", "node")
NODE_CPU = _gauge("node_cpu_usage_ratio", "Part of its cores that a node's workers use.", "node")
NODE_MEMORY = _gauge("node_memory_capacity_bytes", "Memory that a node can give.", "node")
NODE_MEMORY_USED = _gauge("node_memory_used_bytes", "Memory that a node's workers use.", "node")
NODE_WARM = _gauge("node_fork_server_warm", "1 while the node's fork server is ready, so that starts are fast.", "node")
NODE_ASLEEP = _gauge("node_asleep", "1 while the node sleeps, or is being woken.", "node")
NODE_TEMPERATURE = _gauge("node_temperature_celsius", "The hottest zone of a node, where it tells.", "node")
NODE_POWER = _gauge("node_power_watts", "Power of a node's processors, where it tells.", "node")
JOINED = _count("node_joins", "Times a node came up.", "node")
LOST = _count("node_losses", "Times a node was lost.", "node")

# ---------------------------------------------------------------- workers, summed by tenant and node
WORKERS = _gauge("workers", "Workers that are alive.", "tenant", "node")
WORKER_CPU = _count("worker_cpu_seconds", "Cpu time of workers.", "tenant", "node")
WORKER_MEMORY = _gauge("worker_memory_bytes", "Memory of workers.", "tenant", "node")
WORKER_NETWORK = _count("worker_network_bytes", "Bytes that workers sent and received over TCP.", "tenant", "node")

# ---------------------------------------------------------------- tenants
TENANT_WEIGHT = _gauge("tenant_weight", "The tenant's weight in the shares.", "tenant")
TENANT_QUOTA = _gauge("tenant_quota_devices", "Devices that it may never exceed; absent without a quota.", "tenant")
TENANT_SURE = _gauge("tenant_guaranteed_devices", "Devices of a type that it gets whenever it wants them.",
                     "tenant", "device_type")  # fmt: skip
TENANT_MOST = _gauge("tenant_most_devices", "Devices of a type that it may never exceed.", "tenant", "device_type")
TENANT_ENTITLED = _gauge("tenant_entitlement_devices", "Devices that it may claim now.", "tenant")
TENANT_BORROWED = _gauge("tenant_borrowed_devices", "Devices held beyond its share; negative: lent.", "tenant")
TENANT_DEVICES = _gauge("tenant_devices", "Devices that it holds now.", "tenant")
TENANT_SHARE = _gauge("tenant_share_ratio", "Part of all devices that it holds now.", "tenant")
TENANT_BUDGET = _gauge("tenant_budget_device_seconds", "Its budget for this period; absent without one.", "tenant")
TENANT_SPENT = _gauge("tenant_budget_used_device_seconds", "What it used of its budget in this period.", "tenant")
DEVICE_TIME = _total("device_seconds", "Device time from the ledger, of all time.", "tenant")
FAIRNESS = _gauge("fairness_index", "Jain's index of device time per weight in the last hour; 1 is fair.")
BALANCE = _gauge("fairness_of_due_index", "Jain's index of useful work over what was due to tenants lately.")
CORRECTS = _gauge("fairness_correcting", "1 while that index is too low and what is owed is repaid sooner.")

# ---------------------------------------------------------------- disk and build
TENANT_DISK = _gauge("tenant_disk_bytes", "What its jobs keep on disk: logs, output, snapshots, bundles, other.",
                     "tenant", "kind")  # fmt: skip
STORE_SIZE = _gauge("store_size_bytes", "The store's own files; absent when it is a server.")
PLATFORM_LOGS = _gauge("platform_log_bytes", "Logs of the platform's own processes.")
DISK_SIZE = _gauge("disk_size_bytes", "The file system that holds the home.")
DISK_FREE = _gauge("disk_free_bytes", "What is free there.")
BUILD = _gauge("build_info", "What runs: always 1.", "version", "python")
