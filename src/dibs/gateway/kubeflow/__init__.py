"""The slice of the Kubernetes API that the Kubeflow SDK and `kubectl` need for training jobs, below /kubeflow.

    resources   the kinds that are served            discovery   what `kubectl` asks first
    namespaces  tenants                              runtimes    TrainingRuntime, ClusterTrainingRuntime
    trainjobs   TrainJob                             pods, logs  its ranks, and what they print
    events      what happened                        configmaps  the version that the SDK looks for
    watch       lists that go on                     submission  what a job is made of
    asking, selectors, listing, tables, views, changes, status: how it is asked and answered

Nothing is decided here: `train` judges a job, `workloads` runs it.
"""

from __future__ import annotations

from typing import Any


def route_handlers() -> list[Any]:
    from dibs.gateway.kubeflow import configmaps, discovery, events, logs, namespaces, pods, runtimes, trainjobs

    nouns = (discovery, namespaces, configmaps, runtimes, trainjobs, pods, logs, events)
    return [handler for noun in nouns for handler in noun.HANDLERS]
