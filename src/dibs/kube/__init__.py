"""Kubernetes, seen from outside: which clusters there are, a small client, what a cluster has, why something waits.

    cluster = Cluster(find_cluster())                 # kubeconfig's current context, or the pod that dibs runs in
    cluster.items(NODES, objects.Node)                # typed, page by page
    read_inventory(cluster)                           # nodes, devices, who holds them
    explain_pod(cluster, "default", "train-0")        # why it is pending

Nothing is installed in the cluster, and reading needs read access only. It must not know the ledger or a backend.
"""
