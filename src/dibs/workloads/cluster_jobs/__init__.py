"""Training jobs on a Kubernetes cluster: submitted in the way that the cluster has, followed rank by rank.

source    where runtimes, claims, classes and CRDs are looked up
strategies  Kubeflow Trainer, JobSet alone, or Indexed Jobs: which it will be, and why
objects   what is created in each way
service   submit, look at, remove
ranks     phase, devices and restarts of each rank, and why one waits
records   all jobs of a cluster, as a list
tenants   the clusters of a gateway, and the namespaces of its tenants there
"""
