"""The client of a gateway: the same calls as `dibs.workloads`, over HTTP. Loaded only where a gateway is used."""
