"""Random patches of random Pods and Jobs: `kubectl patch --local --type=strategic` and `merge` give the same.

kubectl is taken from DIBS_KUBECTL, from the PATH, or from the cache that the tests against a cluster fill; without one
the test says so and is skipped. One kubectl patches many objects, since it starts slowly. DIBS_SOAK=1 runs 10,000 pairs
of object and patch, otherwise a small slice of the same. A failing pair is printed with its seed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dibs.kube.merge import MergeRefused, merge
from dibs.kube.merge_keys import KINDS

Json = dict[str, Any]

OBJECTS = 50  # per patch, and so per kubectl
PATCHES = 200 if os.environ.get("DIBS_SOAK") else 20
SEED = 20261118
CACHE = Path(
    os.environ.get("DIBS_CLUSTER_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'}/dibs-cluster"
)


def _kubectl() -> str:
    cached = sorted(str(file) for file in CACHE.glob("*/kubectl"))
    return os.environ.get("DIBS_KUBECTL") or shutil.which("kubectl") or (cached[-1] if cached else "")


KUBECTL = _kubectl()


@pytest.mark.skipif(not KUBECTL, reason="no kubectl: not in DIBS_KUBECTL, on the PATH or in the cache")
@pytest.mark.parametrize("batch", range(PATCHES))
def test_kubectl_agrees(batch: int, tmp_path: Path) -> None:
    dice = random.Random(SEED + batch)
    kind = dice.choice(("Pod", "Pod", "Job"))
    objects = [_object(dice, kind, f"n{index}") for index in range(OBJECTS)]
    change = _patch(dice, kind)
    theirs = _patched(objects, change, tmp_path)
    for one in objects:
        name = one["metadata"]["name"]
        try:
            ours: Json | None = merge(one, change, KINDS[kind])
        except MergeRefused:
            ours = None
        assert ours == theirs.get(name), f"batch {batch}, {name}: {json.dumps(one)} patched by {json.dumps(change)}"


@pytest.mark.skipif(not KUBECTL, reason="no kubectl: not in DIBS_KUBECTL, on the PATH or in the cache")
@pytest.mark.parametrize(
    ("gone", "added", "order"),
    [("a", "e", "e"), ("a", "e", "ceb"), ("ab", "", "dc"), ("bc", "ef", "efd"), ("d", "e", "ae"), ("abcd", "ef", "ef")],
)
def test_an_order_over_a_list_with_deletions(gone: str, added: str, order: str, tmp_path: Path) -> None:
    """The reference sorts by a list that its own deletions and additions have written over."""
    secrets = [{"name": name} for name in "abcd"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "demo"}, "spec": {"imagePullSecrets": secrets}}
    deleted = [{"name": name, "$patch": "delete"} for name in gone]
    change = {
        "spec": {
            "imagePullSecrets": [*deleted, *({"name": name} for name in added)],
            "$setElementOrder/imagePullSecrets": [{"name": name} for name in order],
        }
    }
    assert {"demo": merge(pod, change, KINDS["Pod"])} == _patched([pod], change, tmp_path)


def _patched(objects: list[Json], change: Json, folder: Path) -> dict[str, Json]:
    """What kubectl makes of them, by name."""
    source = folder / "objects.json"
    source.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    words = ["patch", "--local", "--type=strategic", "-o", "json", "-f", str(source), "-p", json.dumps(change)]
    ran = subprocess.run([KUBECTL, *words], capture_output=True, text=True, check=False, timeout=120)
    found = {one["metadata"]["name"]: one for one in _stream(ran.stdout)}
    assert found or ran.returncode, ran.stderr
    return found


def _stream(text: str) -> list[Json]:
    found: list[Json] = []
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found += value["items"] if value.get("kind") == "List" else [value]
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def _some(dice: random.Random, items: list[Any], least: int = 0) -> list[Any]:
    return dice.sample(items, dice.randint(least, len(items)))


def _object(dice: random.Random, kind: str, name: str) -> Json:
    metadata: Json = {"name": name}
    if dice.random() < 0.6:
        metadata["finalizers"] = _some(dice, ["f/a", "f/b", "f/c"])
        metadata["labels"] = dict.fromkeys(_some(dice, ["a", "b", "c"]), "1")
    spec = _pod_spec(dice)
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    template = {"metadata": {"labels": {"x": "1"}}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": template, "completions": 1},
    }


def _pod_spec(dice: random.Random) -> Json:
    spec: Json = {"containers": [_container(dice, name) for name in _some(dice, ["node", "side", "log"], 1)]}
    if dice.random() < 0.4:
        spec["initContainers"] = [_container(dice, name) for name in _some(dice, ["prep", "fetch"])]
    lists: Json = {
        "volumes": [{"name": name, **dice.choice(SOURCES)} for name in _some(dice, ["u", "v", "w"])],
        "resourceClaims": [{"name": name, **dice.choice(CLAIMS)} for name in _some(dice, ["gpu", "nic", "rdma"])],
        "tolerations": [{"key": key, "operator": "Exists"} for key in _some(dice, ["a", "b"])],
        "imagePullSecrets": [{"name": name} for name in _some(dice, ["p1", "p2"])],
        "schedulingGates": [{"name": name} for name in _some(dice, ["g1", "g2"])],
        "hostAliases": [{"ip": ip, "hostnames": ["h"]} for ip in _some(dice, ["1.1.1.1", "2.2.2.2"])],
    }
    spec |= {key: value for key, value in lists.items() if dice.random() < 0.6}
    if dice.random() < 0.5:
        spec["nodeSelector"] = {key: dice.choice("xyz") for key in _some(dice, ["a", "b", "c"])}
        spec["securityContext"] = {"runAsUser": dice.randint(0, 3), "sysctls": [{"name": "s", "value": "1"}]}
        spec["terminationGracePeriodSeconds"] = dice.randint(0, 9)
    return spec


SOURCES: list[Json] = [{"emptyDir": {}}, {"emptyDir": {"medium": "Memory"}}, {"configMap": {"name": "c"}},
                       {"hostPath": {"path": "/x"}}, {"secret": {"secretName": "s"}}]  # fmt: skip
CLAIMS: list[Json] = [{"resourceClaimName": "one"}, {"resourceClaimTemplateName": "many"}]


def _container(dice: random.Random, name: str) -> Json:
    made: Json = {"name": name, "image": dice.choice(("i:1", "i:2"))}
    lists: Json = {
        "env": [{"name": key, **dice.choice(VALUES)} for key in _some(dice, ["A", "B", "C"])],
        "ports": [{"containerPort": port} for port in _some(dice, [80, 81, 82])],
        "volumeMounts": [{"mountPath": path, "name": "u"} for path in _some(dice, ["/a", "/b", "/c"])],
        "command": _some(dice, ["a", "b"]),
        "resources": {"limits": {"cpu": "1"}, "claims": [{"name": key} for key in _some(dice, ["gpu", "nic"])]},
    }
    return made | {key: value for key, value in lists.items() if dice.random() < 0.6}


VALUES: list[Json] = [{"value": "1"}, {"value": "2"}, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]


def _patch(dice: random.Random, kind: str) -> Json:
    spec = _pod_spec(dice)
    _directives(dice, spec, "containers", "name")
    for field, key in (("volumes", "name"), ("resourceClaims", "name"), ("imagePullSecrets", "name"),
                       ("hostAliases", "ip"), ("initContainers", "name")):  # fmt: skip
        _directives(dice, spec, field, key)
    for container in spec.get("containers", []):
        for field, key in (("env", "name"), ("ports", "containerPort"), ("volumeMounts", "mountPath")):
            _directives(dice, container, field, key)
        _nulls(dice, container)
    _nulls(dice, spec)
    if dice.random() < 0.1:
        spec["securityContext"] = {"$patch": dice.choice(("replace", "delete")), "runAsUser": 7}
    metadata: Json = {}
    if dice.random() < 0.3:
        metadata["labels"] = {key: dice.choice((None, "z")) for key in _some(dice, ["a", "b", "d"])}
    chosen = dice.random()
    if chosen < 0.2:
        metadata["finalizers"] = _some(dice, ["f/a", "f/c", "f/d"])
    elif chosen < 0.4:
        metadata["$deleteFromPrimitiveList/finalizers"] = _some(dice, ["f/a", "f/c"], 1)
    elif chosen < 0.5:
        metadata["$setElementOrder/finalizers"] = _some(dice, ["f/a", "f/b", "f/c"], 1)
        if dice.random() < 0.5:
            metadata["$deleteFromPrimitiveList/finalizers"] = _some(dice, ["f/a", "f/c"], 1)
    inner = spec if kind == "Pod" else {"template": {"spec": spec}, "parallelism": 2}
    return {"metadata": metadata, "spec": inner}


def _nulls(dice: random.Random, value: Json) -> None:
    for key in [key for key in value if key not in ("name", "containers", "image") and not key.startswith("$")]:
        ordered = f"$setElementOrder/{key}" in value
        if not ordered and dice.random() < 0.05:
            value[key] = None


def _directives(dice: random.Random, owner: Json, field: str, key: str) -> None:
    items = owner.get(field)
    if not items:
        return
    for item in items:
        chosen = dice.random()
        if chosen < 0.12:
            kept = item[key]
            item.clear()
            item.update({key: kept, "$patch": "delete"})
        elif chosen < 0.2 and field in ("volumes", "resourceClaims", "env"):
            item["$retainKeys"] = list(item)
        elif chosen < 0.23:
            item["$retainKeys"] = [key]
    chosen = dice.random()
    if chosen < 0.06:
        items.append({"$patch": "replace"})
    elif chosen < 0.08:
        items.append({key: items[0][key], "$patch": "merge"})
    elif chosen < 0.25:
        gone = dice.random() < 0.3  # an order may name what is deleted, too
        order = [{key: item[key]} for item in items if gone or "$patch" not in item]
        if dice.random() < 0.3:
            dice.shuffle(order)
        owner[f"$setElementOrder/{field}"] = order
