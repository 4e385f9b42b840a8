"""Training jobs without a cluster: `service.Jobs` is what callers use, `driver` makes a job go on."""
