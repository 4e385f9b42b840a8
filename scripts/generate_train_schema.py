"""Write src/dibs/train/schemas.json from the CRDs of Kubeflow Trainer: the shapes and rules, without the prose.

    python scripts/generate_train_schema.py PATH/manifests/base/crds

Shapes that occur several times are written once (`types`, referred to by number). What KEP-2782 adds to the released
CRDs stands here as well, because it is not in any release yet.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).resolve().parent.parent / "src/dibs/train/schemas.json"
KEPT = ("type", "required", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
        "minProperties", "default")  # fmt: skip
IMMUTABLE = {"rule": "self == oldSelf", "message": "field is immutable"}
SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
POD = ("template", "spec", "replicatedJobs", "template", "spec", "template", "spec")
PATCHED_POD = ("spec", "runtimePatches", "trainingRuntimeSpec", *POD)
RUNTIME_POD = ("spec", *POD)


def main(folder: str) -> None:
    job, runtime = _crd(folder, "trainjobs"), _crd(folder, "clustertrainingruntimes")
    _add_claims(job, runtime)
    types: dict[str, int] = {}
    kinds = {"TrainJob": _compact(job, types), "TrainingRuntime": _compact(runtime, types)}
    tables = {"types": [json.loads(text) for text in types], **kinds}
    OUT.write_text(json.dumps(tables, separators=(",", ":"), sort_keys=True) + "\n")


def _crd(folder: str, plural: str) -> dict[str, Any]:
    crd = yaml.safe_load((Path(folder) / f"trainer.kubeflow.org_{plural}.yaml").read_text())
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _at(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path:
        schema = schema["properties"][name]
        schema = schema.get("items", schema)
    return schema


def _add_claims(job: dict[str, Any], runtime: dict[str, Any]) -> None:
    """KEP-2782: resourceClaimsPerNode, and resourceClaims and resources in patches, with the rules of its revisions."""
    trainer = job["properties"]["spec"]["properties"]["trainer"]["properties"]
    trainer["resourceClaimsPerNode"] = {
        "type": "array", "maxItems": 32, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object", "required": ["name", "resourceClaimTemplateName"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 63,
                         "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
                "resourceClaimTemplateName": {"type": "string", "minLength": 1, "maxLength": 253},
            },
        },
    }  # fmt: skip
    trainer["resourcesPerNode"]["x-kubernetes-validations"] = [{
        "rule": "!has(self.claims) || size(self.claims) == 0",
        "message": "claims must not be set in resourcesPerNode; use resourceClaimsPerNode instead",
    }]  # fmt: skip
    full, patched = _at(runtime, RUNTIME_POD)["properties"], _at(job, PATCHED_POD)["properties"]
    named = [f"has(c.{name}) && c.{name} != ''" for name in SOURCES]
    patched["resourceClaims"] = {
        **full["resourceClaims"], "maxItems": 32, "x-kubernetes-validations": [
            IMMUTABLE,
            {"rule": f"self.all(c, ({named[0]}) || ({named[1]}))",
             "message": "each claim must set either resourceClaimName or resourceClaimTemplateName"},
            {"rule": f"self.all(c, !(({named[0]}) && ({named[1]})))",
             "message": "each claim must set only one of resourceClaimName or resourceClaimTemplateName"},
        ],
    }  # fmt: skip
    for containers in ("containers", "initContainers"):
        patched[containers]["items"]["properties"]["resources"] = full["containers"]["items"]["properties"]["resources"]


def _compact(schema: dict[str, Any], types: dict[str, int]) -> dict[str, Any]:
    found = {key: schema[key] for key in KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
        found["intOrString"] = True
        if "pattern" in schema:
            found["quantity"] = True
    elif "pattern" in schema:
        found["pattern"] = schema["pattern"]
    if schema.get("format") in ("int32", "int64", "date-time"):
        found["format"] = schema["format"]
    if "x-kubernetes-list-type" in schema:
        found["list"] = schema["x-kubernetes-list-type"]
    if "x-kubernetes-list-map-keys" in schema:
        found["keys"] = schema["x-kubernetes-list-map-keys"]
    if "x-kubernetes-validations" in schema:
        found["rules"] = [[one["rule"], one["message"]] for one in schema["x-kubernetes-validations"]]
    if "properties" in schema:
        found["properties"] = {name: _compact(below, types) for name, below in schema["properties"].items()}
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            found[part] = _compact(schema[part], types)
    if "properties" not in found and len(found) < 4:
        return found
    return {"ref": types.setdefault(json.dumps(found, sort_keys=True), len(types))}


if __name__ == "__main__":
    main(sys.argv[1])
