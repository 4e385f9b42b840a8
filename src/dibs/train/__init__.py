"""TrainJob: a whole training job, from Kubeflow's objects to a JobSet, or to ranks for a backend without a cluster.

    objects    strict reading, defaults, CEL rules        schema      the CRDs' shapes
    admission  what a webhook says about a new job, or a change of one
    patches    runtimePatches, merged into the runtime    merge       Kubernetes' strategic merge
    rendering  the job as objects of Kubernetes           processes   how many processes per node, and why
    ranks      the same job, rank by rank

Pure: objects in, objects and reasons out. It asks no cluster and no engine; what must be known of them is passed in
(`facts`).
"""
