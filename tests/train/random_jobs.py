"""Random runtimes and TrainJobs, as users might write them, and as they should not. A seed always gives the same."""

from __future__ import annotations

import random
from typing import Any

from dibs.train.names import ANCESTOR
from dibs.train.objects import API_VERSION

Json = dict[str, Any]

SPACE = "team-a"  # where jobs and namespaced runtimes live, as in the recorded cases
_POLICIES = ("torch", "torch", "torch", "jax", "xgboost", "mpi", "plain", "none")
_AMOUNTS: dict[str, tuple[Any, ...]] = {
    "cpu": ("500m", "1", "2", "3500m", 4),
    "memory": ("1Gi", "64Gi"),
    "nvidia.com/gpu": (1, "2", "4"),
    "google.com/tpu": ("4",),
    "amd.com/gpu": ("2",),
    "nvidia.com/mig-1g.10gb": ("3",),
    "example.com/widget": ("1",),
}
_SOURCES: tuple[Json, ...] = ({"emptyDir": {}}, {"configMap": {"name": "c"}}, {"secret": {"secretName": "s"}})
_RESERVED = ("PET_NNODES", "PET_MASTER_ADDR", "DMLC_TASK_ID", "OMPI_MCA_plm_rsh_args", "JAX_PROCESS_ID")


def case(seed: int) -> Json:
    """A runtime and a job that refers to it; names hold the seed, so that many live side by side."""
    dice = random.Random(seed)
    made = _Case(dice, seed)
    return {"name": f"seed {seed}", "runtime": made.runtime(), "trainjob": made.job(), "update": None}


class _Case:
    def __init__(self, dice: random.Random, seed: int) -> None:
        self._dice = dice
        self._seed = seed
        self.policy = dice.choice(_POLICIES)
        self._initializers = [one for one in ("dataset-initializer", "model-initializer") if self._often(0.15)]
        self._sidecar = self._often(0.3)

    def _often(self, share: float) -> bool:
        return self._dice.random() < share

    # -- the runtime

    def runtime(self) -> Json:
        dice = self._dice
        jobs = [self._initializer(name) for name in self._initializers]
        if self.policy == "mpi":
            as_node = self._often(0.5)
            jobs.append(self._replicated("launcher", "trainer"))
            jobs.append(self._replicated("node", ""))
            policy: Json = {"mpi": {"runLauncherAsNode": as_node}}
            if self._often(0.3):
                policy["mpi"]["numProcPerNode"] = dice.choice((1, 2, 8))
        else:
            jobs.append(self._replicated("node", "trainer"))
            policy = {} if self.policy in ("plain", "none") else {self.policy: {}}
        if self._often(0.1) and self.policy != "mpi":
            jobs.append(self._replicated("other", ""))
        if self._often(0.6) or self.policy == "plain":
            policy["numNodes"] = dice.choice((1, 1, 2, 3))
        template: Json = {"spec": {"replicatedJobs": jobs}}
        if self._often(0.15):
            template["spec"]["network"] = {"subdomain": f"net{self._seed}"}
        if self._often(0.15):
            template["spec"]["failurePolicy"] = {"maxRestarts": dice.randint(1, 3)}
        if self._often(0.2):
            template["metadata"] = {"labels": {"team": "a"}, "annotations": {"note": "x"}}
        spec: Json = {"template": template}
        if self.policy != "none":
            spec["mlPolicy"] = policy
        if self._often(0.06):
            spec["podGroupPolicy"] = {"coscheduling": {}}
        kind = "TrainingRuntime" if self._often(0.2) else "ClusterTrainingRuntime"
        self.kind = kind
        place = {"namespace": SPACE} if kind == "TrainingRuntime" else {}
        return {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {"name": f"rt{self._seed}", **place},
            "spec": spec,
        }

    def _initializer(self, name: str) -> Json:
        container = {"name": name, "image": "img/i:1", "volumeMounts": [{"name": "initializer", "mountPath": "/w"}]}
        pod = {"containers": [container], "volumes": [{"name": "initializer", "emptyDir": {}}]}
        return self._job(name, name, pod)

    def _replicated(self, name: str, step: str) -> Json:
        dice = self._dice
        node: Json = {"name": "node", "image": "img/a:1"}
        if self._often(0.5):
            node["resources"] = self._resources()
        if self._often(0.4):
            node["env"] = [{"name": one, "value": "r"} for one in dice.sample(["A", "B", "HOME"], 2)]
        if self._often(0.3):
            node["command"] = ["python", "train.py"]
        if self._often(0.15):
            node["ports"] = [{"containerPort": 8080, **({"name": "http"} if self._often(0.6) else {})}]
        if self._often(0.2):
            node["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        pod: Json = {"containers": [node]}
        if self._sidecar:
            pod["containers"].append({"name": "side", "image": "img/s:1"})
        if self._often(0.15):
            pod["initContainers"] = [{"name": "prep", "image": "img/p:1"}]
        pod["volumes"] = [{"name": "data", **dice.choice(_SOURCES)}]
        if self._often(0.2):
            pod["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
            node.setdefault("resources", {})["claims"] = [{"name": "gpu"}]
        if self._often(0.2):
            pod["nodeSelector"] = {"pool": "a"}
            pod["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
        return self._job(name, step, pod)

    def _job(self, name: str, step: str, pod: Json) -> Json:
        metadata = {"metadata": {"labels": {ANCESTOR: step}}} if step else {}
        spec: Json = {"template": {"spec": pod}}
        if self._often(0.1):
            spec["backoffLimit"] = self._dice.randint(0, 3)
        if self._often(0.1) and name == "other":
            spec["parallelism"] = 2
        return {"name": name, "template": {**metadata, "spec": spec}}

    def _resources(self) -> Json:
        keys = self._dice.sample(list(_AMOUNTS), self._dice.choice((1, 1, 2, 3)))
        limits = {key: self._dice.choice(_AMOUNTS[key]) for key in keys}
        if self._often(0.25):
            return {"limits": limits, "requests": limits}
        return {"limits": limits}

    # -- the job

    def job(self) -> Json:
        dice = self._dice
        spec: Json = {"runtimeRef": {"name": f"rt{self._seed}", "kind": self.kind}}
        if self._often(0.8):
            spec["trainer"] = self._trainer()
        if self._often(0.5):
            spec["suspend"] = True
        if self._often(0.7 if self._initializers else 0.04):
            spec["initializer"] = self._initializer_of_job()
        if self._often(0.4):
            managers = dice.sample(["acme.io/team", "kueue.x-k8s.io/a", "user"], dice.choice((1, 1, 1, 2)))
            spec["runtimePatches"] = [self._patch(one) for one in managers]
        if self._often(0.1):
            spec["activeDeadlineSeconds"] = dice.choice((600, 3600, 0))
        if self._often(0.03):
            spec["managedBy"] = "example.com/other"
        return {
            "apiVersion": API_VERSION,
            "kind": "TrainJob",
            "metadata": {"name": f"j{self._seed}"},
            "spec": spec,
        }

    def _trainer(self) -> Json:
        dice = self._dice
        made: Json = {}
        if self._often(0.6):
            made["numNodes"] = dice.choice((1, 2, 2, 3, 4, 0)) if self._often(0.4) else dice.choice((1, 2, 3))
        if self._often(0.25):
            made["numProcPerNode"] = dice.choice((1, 2, 4)) if self._often(0.9) else 0
        if self._often(0.4):
            made["image"] = "img/b:2"
        if self._often(0.5):
            made["command"] = dice.choice((["torchrun", "a.py"], ["python", "b.py"], ["sh", "-c", "true"]))
        if self._often(0.3):
            made["args"] = ["--lr", "0.1"]
        if self._often(0.4):
            names = dice.sample(["A", "C", "NCCL_DEBUG"], dice.choice((1, 2)))
            made["env"] = [{"name": one, "value": "j"} for one in names]
            if self._often(0.1):
                made["env"].append({"name": dice.choice(_RESERVED), "value": "1"})
        if self._often(0.45):
            made["resourcesPerNode"] = self._resources()
        return made

    def _initializer_of_job(self) -> Json:
        made: Json = {}
        for field in ("dataset", "model"):
            if self._often(0.6):
                made[field] = {"storageUri": self._dice.choice(("hf://a/b", "s3://x", "no-scheme"))}
                if self._often(0.3):
                    made[field]["env"] = [{"name": "TOKEN", "value": "t"}]
                if self._often(0.3):
                    made[field]["secretRef"] = {"name": "keys"}
        return made

    def _patch(self, manager: str) -> Json:
        dice = self._dice
        pod: Json = {}
        if self._often(0.3):
            pod["volumes"] = [{"name": dice.choice(("data", "extra")), **dice.choice(_SOURCES)}]
        if self._often(0.3):
            pod["nodeSelector"] = {dice.choice(("pool", "zone")): "p"}
        if self._often(0.3):
            pod["tolerations"] = [{"key": "spot", "operator": "Exists"}]
        if self._often(0.2):
            pod["serviceAccountName"] = "sa"
        if self._often(0.2):
            pod["schedulingGates"] = [{"name": "acme.io/gate"}]
        if self._often(0.15):
            pod["securityContext"] = {"runAsUser": 7}
        if self._often(0.35):
            name = dice.choice(("side", "side", "node", "absent"))
            container: Json = {"name": name}
            if self._often(0.5):
                container["env"] = [{"name": "P", "value": "p"}]
            if self._often(0.5):
                container["volumeMounts"] = [{"name": "data", "mountPath": "/patched"}]
            pod["containers"] = [container]
        job = {"name": dice.choice(("node", "node", "node", "node", "launcher", "absent"))}
        inner: Json = {"spec": pod}
        if self._often(0.2):
            inner["metadata"] = {"labels": {"patched": "1"}}
        template = {"spec": {"replicatedJobs": [{**job, "template": {"spec": {"template": inner}}}]}}
        return {"manager": manager, "trainingRuntimeSpec": {"template": template}}
