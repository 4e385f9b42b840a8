"""Docker: its Engine API.

Devices go by exact CDI name (`HostConfig.DeviceRequests` with the driver `cdi`), by NVIDIA's request with exact ids
where the engine has no CDI, or as nodes. Never by count: Docker hands out the first ones, held or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.backends.engines import networks, plain_fields, rendering
from dibs.backends.engines.backend import EngineBackend
from dibs.backends.engines.client import Client, EngineError
from dibs.backends.engines.engine import container
from dibs.backends.engines.facts import Facts, architecture, environment_of, on_path
from dibs.backends.engines.observe_prestart import Watcher, places
from dibs.backends.port import Handle, Usage
from dibs.errors import quoted
from dibs.home import Home
from dibs.http import query

if TYPE_CHECKING:
    from dibs.backends.engines.external import Given

NEWEST = (1, 44)  # the API that this was written for: devices by CDI name, and folders told by the engine
OLDEST = (1, 41)
_WRITABLE = ("/run", "/tmp")  # noqa: S108  # of a container whose root is read-only, as on every backend


class DockerBackend(EngineBackend):
    """See `dibs.backends.port.Backend`."""

    name = "docker"
    wait_condition = "condition=not-running"
    finds_names = True

    def __init__(self, home: Home, address: str = "") -> None:
        super().__init__(home, address)
        self._places = places()

    def _connect(self, target: str, patience: float) -> Client:
        client = Client(target.replace("tcp://", "http://", 1), "", patience)
        told = client.ping().get("api-version", "")
        parts = told.split(".")
        if len(parts) != 2 or not all(part.isdigit() for part in parts):
            raise EngineError(500, f"this is no Docker: it says that its API version is {quoted(told)}", "GET /_ping")
        version = (int(parts[0]), int(parts[1]))
        if version < OLDEST:
            raise EngineError(400, f"client version 1.{OLDEST[1]} is too new. Maximum supported API version is {told}")
        client.prefix = f"/v1.{min(version, NEWEST)[1]}"
        return client

    def _look(self, client: Client) -> Facts:
        info = client.call("GET", "/info")
        peer = client.peer()
        dirs = tuple(info.get("CDISpecDirs") or ())
        listed = info.get("DiscoveredDevices")
        facts = Facts(
            version=str(info.get("ServerVersion", "")),
            architecture=architecture(str(info.get("Architecture", ""))),
            peer=peer,
            cdi=bool(dirs),
            cdi_dirs=dirs,
            discovered=None
            if listed is None
            else frozenset(str(one.get("ID")) for one in listed if one.get("Source") == "cdi"),
            limits=frozenset(
                name
                for name, key in (("cpu", "CpuCfsQuota"), ("memory", "MemoryLimit"), ("pids", "PidsLimit"))
                if info.get(key)
            ),
            swap=bool(info.get("SwapLimit")),
            init=bool(info.get("InitBinary")) and (info.get("InitCommit") or {}).get("ID") != "N/A",
            seccomp=any(
                "name=seccomp" in str(one) and "profile=unconfined" not in str(one)
                for one in info.get("SecurityOptions") or ()
            ),
            rootless=any("rootless" in str(one) for one in info.get("SecurityOptions") or ()),
            legacy="nvidia" in (info.get("Runtimes") or {}),
            systemd=info.get("CgroupDriver") == "systemd",
        )
        if peer is not None and not (facts.legacy and facts.init):
            env = environment_of(peer)
            import msgspec

            facts = msgspec.structs.replace(
                facts,
                init=facts.init and on_path("docker-init", facts.root, env),
                legacy=facts.legacy or on_path("nvidia-container-runtime-hook", facts.root, env),
            )
        return facts

    def _body(self, form: rendering.Form) -> dict[str, Any]:
        workload, devices = form.workload, form.devices
        limits = workload.limits
        host: dict[str, Any] = {
            "NetworkMode": form.network,
            "Init": form.init,
            "LogConfig": {
                "Type": rendering.LOG_TYPE["docker"],
                "Config": {"max-size": str(rendering.LOG_BYTES), "max-file": "2"},
            },
        }
        if limits.memory_bytes is not None:
            host["Memory"] = limits.memory_bytes
            if form.facts.swap:
                host["MemorySwap"] = limits.memory_bytes  # or as much again of swap
        if limits.cpu_millis is not None:
            host["NanoCpus"] = limits.cpu_millis * 1_000_000
        if limits.pids is not None:
            host["PidsLimit"] = limits.pids
        mounts = [*devices.mounts, *workload.mounts, *rendering.folders_in_volumes(form)]
        if workload.read_only:
            host["ReadonlyRootfs"] = True
            taken = {*(one.target for one in mounts), *(one.target for one in workload.volumes)}
            host["Tmpfs"] = {path: "exec" for path in _WRITABLE if path not in taken}
        if mounts:
            host["Mounts"] = [
                {"Type": "bind", "Source": one.source, "Target": one.target, "ReadOnly": not one.writable}
                for one in mounts
            ]
        if whole := rendering.whole_volumes(form):
            # What the image has at that place is not copied into it: a volume is what was put into it.
            host["Mounts"] = [
                *host.get("Mounts", ()),
                *(
                    {"Type": "volume", "Source": one.name, "Target": one.target, "ReadOnly": not one.writable,
                     "VolumeOptions": {"NoCopy": True}}
                    for one in whole
                ),
            ]  # fmt: skip
        if devices.way == "cdi":
            host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": list(devices.names)}]
        elif devices.way == "legacy":
            host["DeviceRequests"] = [{"Driver": "nvidia", "DeviceIDs": list(devices.names), "Capabilities": [["gpu"]]}]
        elif devices.nodes:
            host["Devices"] = [
                {"PathOnHost": node.source, "PathInContainer": node.target, "CgroupPermissions": node.permissions}
                for node in devices.nodes
            ]
        if devices.groups:
            host["GroupAdd"] = [str(group) for group in devices.groups]
        # Docker adds what NVIDIA's hook reads to the first command only; further ones would have other cards in it.
        env = {**workload.env, **devices.env} if devices.way == "legacy" else workload.env
        body: dict[str, Any] = {
            "Image": form.image,
            # One without a value is taken out of the image's.
            "Env": [*(f"{name}={value}" for name, value in env.items()), *rendering.unwanted(form)],
            **({"WorkingDir": workload.workdir} if workload.workdir else {}),
            "Labels": form.labels,
            "Tty": workload.tty,
            "OpenStdin": workload.interactive or workload.tty,
            "StdinOnce": workload.interactive and not workload.tty,
            "AttachStdin": workload.interactive or workload.tty,
            "StopTimeout": int(-(-workload.grace_seconds // 1)),
            "HostConfig": host,
        }
        if workload.peers is not None:
            own = workload.peers.hosts[workload.peers.rank]
            if workload.network == "private":
                aliases = [own, own.partition(".")[0]]
                body["NetworkingConfig"] = {"EndpointsConfig": {form.network: {"Aliases": aliases}}}
                body["Hostname"] = own.partition(".")[0]
        if hosts := rendering.peer_hosts(form):
            host["ExtraHosts"] = hosts
        if workload.publish:
            host["PortBindings"] = networks.ports(workload.publish)
            body["ExposedPorts"] = {port: {} for port in host["PortBindings"]}
        if workload.workdir:
            body["WorkingDir"] = workload.workdir
        if workload.command:
            body["Cmd"] = list(workload.command)
        if form.entrypoint is not None:
            body["Entrypoint"] = list(form.entrypoint) or [""]
        if workload.user:
            body["User"] = workload.user
        plain_fields.tell("docker", body, workload)
        return body

    def _make(self, client: Client, name: str, body: dict[str, Any]) -> str:
        return str(client.call("POST", "/containers/create" + query(name=name), json=body)["Id"])

    def _ignite(self, handle: Handle, client: Client) -> int:
        watcher = Watcher(self._view(handle, 0), self._places)
        watcher.start()
        try:
            return client.answer("POST", container(handle) + "/start", accept=(304,))[0]
        finally:
            self._remember_look(handle, watcher.stop())

    def _events_path(self, filters: str) -> str:
        return "/events" + query(filters=filters)

    def _forbid_restart(self, handle: Handle) -> None:
        body = {"RestartPolicy": {"Name": "no"}}
        self.ask(handle, "POST", container(handle) + "/update", json=body, accept=(404, 409))

    def _given(self, document: dict[str, Any]) -> Given:
        from dibs.backends.engines.external import Given

        return Given(tuple(str(rule) for rule in (document.get("HostConfig") or {}).get("DeviceCgroupRules") or ()))

    def _stats(self, handle: Handle) -> Usage:
        path = container(handle)
        stats = self.ask(handle, "GET", f"{path}/stats?stream=false&one-shot=true")
        host = self.ask(handle, "GET", f"{path}/json")["HostConfig"]
        memory = stats.get("memory_stats") or {}
        return Usage(
            cpu_seconds=stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9,
            memory_bytes=int(memory.get("usage") or 0),
            memory_limit=int(host.get("Memory") or memory.get("limit") or 0),
            cpus=host["NanoCpus"] / 1e9 if host.get("NanoCpus") else float(stats["cpu_stats"].get("online_cpus") or 1),
        )
