"""The sandbox of a worker: namespaces, mounts, system call filter and limits that keep tenants apart."""
