"""The kinds that are served: names, verbs, columns of `kubectl get`. `discovery` prints them, the nouns use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from dibs.train.names import FRAMEWORK
from dibs.train.objects import API_VERSION, CLUSTER_RUNTIME, RUNTIME, TRAIN_JOB

Json = dict[str, Any]

ROOT: Final = "/kubeflow"
READING: Final = ("get", "list")
WATCHED: Final = (*READING, "watch")


class Column(msgspec.Struct, frozen=True):
    """A column of `kubectl get`. `value` reads it from an object; `wide`: only with `-o wide`."""

    name: str
    value: Callable[[Json], Any]
    wide: bool = False
    type: str = "string"
    format: str = ""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One plural of the API."""

    api_version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool = True
    verbs: tuple[str, ...] = WATCHED
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()

    @property
    def group(self) -> str:
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    @property
    def base(self) -> str:
        """The path of its group and version."""
        return f"{ROOT}/{'apis' if self.group else 'api'}/{self.api_version}"

    @property
    def everywhere(self) -> str:
        """The path of the whole list."""
        return f"{self.base}/{self.plural}"

    @property
    def listed(self) -> str:
        """The path of a list: that of a namespace, or of all there is where there are none."""
        return f"{self.base}/namespaces/{{namespace:str}}/{self.plural}" if self.namespaced else self.everywhere

    @property
    def one(self) -> str:
        return f"{self.listed}/{{name:str}}"


def _created(value: Json) -> Any:
    return value["metadata"].get("creationTimestamp")


def _state(value: Json) -> str:
    return str(value.get("status", {}).get("dibs", {}).get("state", ""))


def _policy(value: Json) -> str:
    policy = value["spec"].get("mlPolicy", {})
    return next((name for name in policy if name != "numNodes"), "plain")


def _ready(value: Json) -> str:
    statuses = value.get("status", {}).get("containerStatuses", [])
    return f"{sum(one.get('ready', False) for one in statuses)}/{len(value['spec']['containers'])}"


def _restarts(value: Json) -> int:
    return sum(one.get("restartCount", 0) for one in value.get("status", {}).get("containerStatuses", []))


def _pod_state(value: Json) -> str:
    status = value.get("status", {})
    return str(status.get("reason") or status.get("phase", ""))


_NAME = Column("Name", lambda value: value["metadata"]["name"], format="name")
_AGE = Column("Age", _created, type="date")

TRAIN_JOBS: Final = Resource(
    api_version=API_VERSION, plural="trainjobs", singular="trainjob", kind=TRAIN_JOB,
    verbs=("create", "delete", *WATCHED, "patch", "update"),
    columns=(_NAME, Column("State", _state), _AGE),
)  # fmt: skip
RUNTIMES: Final = Resource(
    api_version=API_VERSION, plural="trainingruntimes", singular="trainingruntime", kind=RUNTIME,
    verbs=("create", "delete", *READING, "patch", "update"),
    columns=(_NAME, Column("Policy", _policy), _AGE),
)  # fmt: skip
CLUSTER_RUNTIMES: Final = Resource(
    api_version=API_VERSION, plural="clustertrainingruntimes", singular="clustertrainingruntime",
    kind=CLUSTER_RUNTIME, namespaced=False, verbs=RUNTIMES.verbs,
    columns=(
        _NAME, Column("Policy", _policy),
        Column("Framework", lambda value: value["metadata"].get("labels", {}).get(FRAMEWORK, "")), _AGE,
    ),
)  # fmt: skip
PODS: Final = Resource(
    api_version="v1", plural="pods", singular="pod", kind="Pod", short_names=("po",),
    columns=(
        _NAME, Column("Ready", _ready), Column("Status", _pod_state), Column("Restarts", _restarts, type="integer"),
        _AGE, Column("Node", lambda value: value["spec"].get("nodeName", ""), wide=True),
    ),
)  # fmt: skip
EVENTS: Final = Resource(
    api_version="v1", plural="events", singular="event", kind="Event", short_names=("ev",), verbs=READING,
    columns=(
        Column("Last Seen", lambda value: value.get("lastTimestamp"), type="date"),
        Column("Type", lambda value: value.get("type", "")),
        Column("Reason", lambda value: value.get("reason", "")),
        Column("Object", lambda value: "{kind}/{name}".format(**value["involvedObject"]).lower()),
        Column("Message", lambda value: value.get("message", "")),
    ),
)  # fmt: skip
CONFIG_MAPS: Final = Resource(
    api_version="v1", plural="configmaps", singular="configmap", kind="ConfigMap", short_names=("cm",), verbs=READING,
    columns=(_NAME, Column("Data", lambda value: len(value.get("data", {})), type="integer"), _AGE),
)  # fmt: skip
NAMESPACES: Final = Resource(
    api_version="v1", plural="namespaces", singular="namespace", kind="Namespace", namespaced=False,
    short_names=("ns",), verbs=READING,
    columns=(_NAME, Column("Status", lambda value: value["status"]["phase"]), _AGE),
)  # fmt: skip
