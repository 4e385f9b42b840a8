"""An admission webhook for clusters that keep Kubeflow Trainer: what dibs refuses, refused at `kubectl apply`.

reviews   AdmissionReview in, AdmissionReview out
files, in_cluster   where runtimes and claims are looked up
server    HTTPS
"""
