"""What a client asks before it asks for anything: groups, versions, kinds, and whether unknown fields are refused.

`kubectl` needs all of it; the Kubeflow SDK needs none. Made from the table in `resources`.
"""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from dibs._version import __version__
from dibs.gateway.auth import require
from dibs.gateway.kubeflow.namespaces import READ
from dibs.gateway.kubeflow.requests import reply
from dibs.gateway.kubeflow.resources import (
    CLUSTER_RUNTIMES,
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    PODS,
    ROOT,
    RUNTIMES,
    TRAIN_JOBS,
    Resource,
)
from dibs.gateway.native.common import Ask
from dibs.train.objects import API_VERSION, GROUP

Json = dict[str, Any]

CORE = (CONFIG_MAPS, EVENTS, NAMESPACES, PODS)
TRAINING = (CLUSTER_RUNTIMES, RUNTIMES, TRAIN_JOBS)
_LOG: Json = {"name": "pods/log", "singularName": "", "namespaced": True, "kind": "Pod", "verbs": ["get"]}
_VERSION = {"groupVersion": API_VERSION, "version": API_VERSION.partition("/")[2]}
_GROUP: Json = {"name": GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}


def _resource(one: Resource) -> Json:
    made: Json = {
        "name": one.plural,
        "singularName": one.singular,
        "namespaced": one.namespaced,
        "kind": one.kind,
        "verbs": list(one.verbs),
    }
    if one.short_names:
        made["shortNames"] = list(one.short_names)
    return made


def _list(version: str, found: list[Json]) -> Json:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


@get(ROOT + "/api")
async def core_versions(request: Ask) -> Response[bytes]:
    require(request, READ)
    return reply({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})


@get(ROOT + "/apis")
async def groups(request: Ask) -> Response[bytes]:
    require(request, READ)
    return reply({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]})


@get(f"{ROOT}/apis/{GROUP}")
async def group(request: Ask) -> Response[bytes]:
    require(request, READ)
    return reply({"kind": "APIGroup", "apiVersion": "v1", **_GROUP})


@get(ROOT + "/api/v1")
async def core(request: Ask) -> Response[bytes]:
    require(request, READ)
    return reply(_list("v1", [*map(_resource, CORE), _LOG]))


@get(f"{ROOT}/apis/{API_VERSION}")
async def training(request: Ask) -> Response[bytes]:
    require(request, READ)
    return reply(_list(API_VERSION, [_resource(one) for one in TRAINING]))


@get(ROOT + "/version")
async def version(request: Ask) -> Response[bytes]:
    """As a Kubernetes of the version whose API this is a slice of; `gitVersion` says who really answers."""
    require(request, READ)
    made = {
        "major": "1", "minor": "37", "gitVersion": f"v1.37.0-dibs.{__version__}", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    }  # fmt: skip
    return reply(made)


@get(ROOT + "/openapi/v3")
async def openapi_index(request: Ask) -> Response[bytes]:
    require(request, READ)
    place = f"/openapi/v3/apis/{API_VERSION}"
    return reply({"paths": {f"apis/{API_VERSION}": {"serverRelativeURL": f"{ROOT}{place}?hash={__version__}"}}})


@get(f"{ROOT}/openapi/v3/apis/{API_VERSION}")
async def openapi_training(request: Ask) -> Response[bytes]:
    """Only what `kubectl` looks for before it sends an object: that `fieldValidation` is known here."""
    require(request, READ)
    paths = {}
    for one in TRAINING:
        named = {"group": GROUP, "version": _VERSION["version"], "kind": one.kind}
        parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        path = one.one.removeprefix(ROOT).replace(":str", "")
        answers = {"200": {"description": "OK"}}
        operation = {"parameters": [parameter], "responses": answers, "x-kubernetes-group-version-kind": named}
        paths[path] = {"patch": operation}
    info = {"title": "dibs", "version": __version__}
    return reply({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}})


HANDLERS = (core_versions, groups, group, core, training, version, openapi_index, openapi_training)
