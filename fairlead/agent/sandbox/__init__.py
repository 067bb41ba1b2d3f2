"""The sandbox of a worker: namespaces, mounts, system call filter and limits that isolate tenants."""
