"""The one ConfigMap that the Kubeflow SDK reads: which version of Kubeflow Trainer it speaks to.

The version is that of the API that is served. What answers is said beside it.
"""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from dibs._version import __version__
from dibs.gateway.auth import require
from dibs.gateway.kubeflow import requests, selectors
from dibs.gateway.kubeflow.namespaces import READ, tenant_in
from dibs.gateway.kubeflow.resources import CONFIG_MAPS
from dibs.gateway.native.common import Ask

Json = dict[str, Any]

SYSTEM = "kubeflow-system"  # where Kubeflow Trainer is installed by default; no tenant's
NAME = "kubeflow-trainer-public"
TRAINER_VERSION = "v2.3.0"


def _public() -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": SYSTEM, "uid": NAME},
        "data": {"kubeflow_trainer_version": TRAINER_VERSION, "dibs_version": __version__},
    }


def _items(request: Ask) -> list[Json]:
    who = require(request, READ)
    if request.path_params["namespace"] == SYSTEM:
        return [_public()]
    tenant_in(request, who)
    return []


@get(CONFIG_MAPS.listed)
async def list_config_maps(request: Ask) -> Response[bytes]:
    asked = requests.query(request, requests.ListQuery)
    selectors.check_list(asked, watchable=False)
    items = [one for one in _items(request) if selectors.matches(asked, one)]
    return requests.show_list(request, CONFIG_MAPS, items, "1")


@get(CONFIG_MAPS.one)
async def get_config_map(request: Ask) -> Response[bytes]:
    requests.query(request, requests.GetQuery)
    name = requests.name_in(request)
    found = next((one for one in _items(request) if one["metadata"]["name"] == name), None)
    if found is None:
        raise requests.missing(CONFIG_MAPS, name)
    return requests.show(request, CONFIG_MAPS, found)


HANDLERS = (list_config_maps, get_config_map)
