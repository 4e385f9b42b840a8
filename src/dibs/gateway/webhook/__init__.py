"""An admission webhook for clusters that keep Kubeflow Trainer: what dibs refuses, refused at `kubectl apply`.

reviews   AdmissionReview in, AdmissionReview out
files     runtimes and claims of files; those of a cluster are looked up by `workloads.cluster_jobs.source`
server    HTTPS
"""
