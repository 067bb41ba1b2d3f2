"""The demonstration: three tenants train real models on a small cluster, one node is killed, and all jobs finish."""
