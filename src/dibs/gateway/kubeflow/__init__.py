"""The slice of the Kubernetes API that the Kubeflow SDK and `kubectl` need for training jobs, below /kubeflow.

    resources   the kinds that are served            discovery   what `kubectl` asks first
    namespaces  tenants                              runtimes    TrainingRuntime, ClusterTrainingRuntime
    trainjobs   TrainJob                             pods, logs  its ranks, and what they print
    events      what happened                        configmaps  the version that the SDK looks for
    watch       lists that go on                     tables, selectors, asking, status: how it is asked and answered

Nothing is decided here: `train` judges a job, `workloads` runs it.
"""

from __future__ import annotations

from typing import Any


def route_handlers() -> list[Any]:
    from dibs.gateway.kubeflow import configmaps, discovery, namespaces, runtimes

    return [*discovery.HANDLERS, *namespaces.HANDLERS, *configmaps.HANDLERS, *runtimes.HANDLERS]
