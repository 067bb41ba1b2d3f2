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
PENDING = _gauge("pending_jobs", "Waiting jobs, by the last round's reason.", "tenant", "reason")
PENDING_AGE = _gauge("longest_pending_seconds", "Age of the oldest waiting job.", "tenant")
SUBMITTED = _count("submitted_jobs", "Submitted jobs.", "tenant")
ADMITTED = _count("admitted_jobs", "Times a waiting job got devices.", "tenant", "reason")
FINISHED = _count("finished_jobs", "Jobs that ended: succeeded, failed or cancelled.", "tenant", "outcome")
EVICTED = _count("evicted_jobs", "Times a job returned to the queue, by cause.", "tenant", "reason")
PREEMPTED = _count("preempted_jobs", "Preemptions, by the round's reason.",
                   "tenant", "reason")  # fmt: skip
RESIZED = _count("resized_jobs", "Resizes of running jobs, by the round's reason.", "tenant", "reason")
FAILED_ATTEMPTS = _count("failed_attempts", "Attempts that failed in user code.", "tenant")
GENERATIONS = _count("started_generations", "Generations that reached the running phase.", "tenant")
ABANDONED = _count("abandoned_generations", "Generations that could not start.", "tenant")
LOST_WORKERS = _count("lost_workers", "Workers that running gangs lost.", "tenant")
SLA = _count("sla_decided_jobs", "Ended jobs with an SLA, by result: kept or missed.", "tenant", "result")
WAIT = _seconds("admission_wait_time", "From submission, or return to the queue, to getting devices.",
                WAITS, "tenant")  # fmt: skip
START = _seconds("generation_start_time", "From the decision to all workers of a generation running.",
                 STARTS, "tenant")  # fmt: skip
FIRST_STEP = _seconds("first_step_time", "From the decision to a generation's first training step.", STARTS, "tenant")
COMPLETION = _seconds("job_completion_time", "From submission to the end (JCT).", LIVES, "tenant", "outcome")
RECOVERY = _seconds("recovery_time", "From the loss of a worker to the next training step (FRT).", STARTS, "tenant")
BLIND = _count("planner_blind_jobs", "Jobs whose model could not be profiled: they run as whole copies.",
               "tenant")  # fmt: skip
SNAPSHOT = _seconds("snapshot_time", "Time that a worker took to store a snapshot.", QUICK, "where")
SNAPSHOT_WAIT = _seconds("snapshot_wait_time", "Time that a training step waited for a snapshot.", QUICK, "tenant")

# ---------------------------------------------------------------- decisions
ROUNDS = _count("decision_rounds", "Scheduling rounds, by whether they changed anything.", "result")
ROUND_TIME = _seconds("decision_round_duration", "Reading the state, deciding and storing the decisions.", QUICK)
DECISIONS = _count("decisions", "Decisions of all rounds by kind.", "decision")
INTERNAL_ERRORS = _count("internal_errors", "Internal errors, by operation.", "reason")
LAST_ROUND = _gauge("last_decision_round_timestamp_seconds", "Time of the last round.")

# ---------------------------------------------------------------- store and leadership
STORE_WRITE = _seconds("store_write_duration", "From a write request to its durability.", QUICK)
STORE_COMMIT = _seconds("store_commit_duration", "One transaction of grouped writes.", QUICK)
STORE_READ = _seconds("store_read_duration", "One consistent read, with its wait for a reader.", QUICK)
STORE_FAILED = _count("store_failed_commits", "Failed transactions.")
STORE_QUEUE = _gauge("store_pending_writes", "Waiting writes.")
LEADER = _gauge("leader", "1 while this control plane leads.")
EPOCH = _gauge("leader_epoch", "Epoch of its leadership.")
RENEWED = _level("lease_renewed_timestamp_seconds", "Time of the last lease renewal.")

# ---------------------------------------------------------------- API
REQUESTS = _count("api_requests", "Requests by route, method and status.", "route", "method", "status")
REQUEST_TIME = _seconds("api_request_duration", "From a request to the end of its answer; for a stream, to its begin.",
                        QUICK, "route", "method")  # fmt: skip
IN_FLIGHT = _level("api_inflight_requests", "Requests in flight, streams included.")
LIMITED = _count("api_rate_limited_requests", "Rate-limited requests, by limit: rate, streams or logins.",
                 "reason")  # fmt: skip
STREAMS = _level("api_event_streams", "Open event and log streams.")

# ---------------------------------------------------------------- nodes and devices
NODES = _gauge("nodes", "Nodes by state.", "state")
NODE_UP = _gauge("node_up", "1 while the node is reachable.", "node")
NODE_INFO = _gauge("node_info", "Type and isolation of a node; always 1.", "node", "device_type", "isolation")
NODE_STATUS = _gauge("node_status", "1 for the node's present state, 0 for the others.", "node", "state")
DEVICES = _gauge("node_devices", "Devices of a node.", "node", "device_type")
DEVICES_USED = _gauge("node_devices_used", "Devices of a node that are held by workers.", "node", "device_type")
NODE_CORES = _gauge("node_cpu_cores", "Cores of a node.", "node")
NODE_CPU = _gauge("node_cpu_usage_ratio", "Part of a node's cores in use by its workers.", "node")
NODE_MEMORY = _gauge("node_memory_capacity_bytes", "Memory of a node.", "node")
NODE_MEMORY_USED = _gauge("node_memory_used_bytes", "Memory of a node in use by its workers.", "node")
NODE_WARM = _gauge("node_fork_server_warm", "1 while the node's fork server is ready and starts are fast.", "node")
NODE_ASLEEP = _gauge("node_asleep", "1 while the node sleeps, or is being woken.", "node")
NODE_TEMPERATURE = _gauge("node_temperature_celsius", "Hottest zone of a node, if it reports one.", "node")
NODE_POWER = _gauge("node_power_watts", "Power of a node's processors, if it reports it.", "node")
JOINED = _count("node_joins", "Times a node joined.", "node")
LOST = _count("node_losses", "Times a node was lost.", "node")

# ---------------------------------------------------------------- workers, summed by tenant and node
WORKERS = _gauge("workers", "Workers that are alive.", "tenant", "node")
WORKER_CPU = _count("worker_cpu_seconds", "CPU time of workers.", "tenant", "node")
WORKER_MEMORY = _gauge("worker_memory_bytes", "Memory of workers.", "tenant", "node")
WORKER_NETWORK = _count("worker_network_bytes", "Bytes that workers sent and received over TCP.", "tenant", "node")

# ---------------------------------------------------------------- tenants
TENANT_WEIGHT = _gauge("tenant_weight", "Weight of the tenant.", "tenant")
TENANT_QUOTA = _gauge("tenant_quota_devices", "Its quota of devices; absent without one.", "tenant")
TENANT_SURE = _gauge("tenant_guaranteed_devices", "Devices of a type that it gets whenever it wants them.",
                     "tenant", "device_type")  # fmt: skip
TENANT_MOST = _gauge("tenant_most_devices", "Most devices of a type that it may hold.", "tenant", "device_type")
TENANT_ENTITLED = _gauge("tenant_entitlement_devices", "Devices that it may claim now.", "tenant")
TENANT_BORROWED = _gauge("tenant_borrowed_devices", "Devices held beyond its share; negative: lent.", "tenant")
TENANT_DEVICES = _gauge("tenant_devices", "Devices that it holds now.", "tenant")
TENANT_SHARE = _gauge("tenant_share_ratio", "Part of all devices that it holds now.", "tenant")
TENANT_BUDGET = _gauge("tenant_budget_device_seconds", "Its budget for this period; absent without one.", "tenant")
TENANT_SPENT = _gauge("tenant_budget_used_device_seconds", "Part of its budget used in this period.", "tenant")
DEVICE_TIME = _total("device_seconds", "Device time in the ledger since the beginning.", "tenant")
FAIRNESS = _gauge("fairness_index", "Jain's index of device time per weight in the last hour; 1 is fair.")
BALANCE = _gauge("fairness_of_due_index", "Jain's index of useful work / what was due, in the last minutes.")
CORRECTS = _gauge("fairness_correcting", "1 while that index is too low and debts are repaid sooner.")

# ---------------------------------------------------------------- disk and build
TENANT_DISK = _gauge("tenant_disk_bytes", "Disk use of its jobs: logs, output, snapshots, bundles, other.",
                     "tenant", "kind")  # fmt: skip
STORE_SIZE = _gauge("store_size_bytes", "Size of the store's files; absent for a database server.")
PLATFORM_LOGS = _gauge("platform_log_bytes", "Size of the platform's own logs.")
DISK_SIZE = _gauge("disk_size_bytes", "Size of the file system with the home.")
DISK_FREE = _gauge("disk_free_bytes", "Free space of that file system.")
BUILD = _gauge("build_info", "Version and Python; always 1.", "version", "python")
