"""The demonstration: three tenants train real models on one small cluster, a node dies, and all of it ends well."""
