"""Podman: its own API (libpod), never its imitation of Docker's, which drops what it does not know.

Podman can stop between making a container and running its command: everything is set up, the process waits. The look
from outside is taken there too, so that a command which ends at once was still seen with its devices before it ran.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.backends.engines import networks, observe_prestart, plain_fields, rendering, ttl
from dibs.backends.engines.backend import EngineBackend
from dibs.backends.engines.cgroups import is_of
from dibs.backends.engines.client import Client, EngineError
from dibs.backends.engines.engine import container, identity
from dibs.backends.engines.facts import Facts, architecture, environment_of, on_path, podman_spec_dirs, resolved
from dibs.backends.port import Handle, NodeFact, Session, Usage
from dibs.home import Home
from dibs.http import query

if TYPE_CHECKING:
    from dibs.backends.engines.external import Given

_INITS = ("/usr/libexec/podman/catatonit", "/usr/local/libexec/podman/catatonit", "/usr/lib/podman/catatonit")


class PodmanBackend(EngineBackend):
    """See `dibs.backends.port.Backend`."""

    name = "podman"
    wait_condition = "condition=exited&condition=stopped&interval=20ms"

    def __init__(self, home: Home, address: str = "") -> None:
        super().__init__(home, address)
        self._attached: set[str] = set()  # folders of the sandboxes with a client attached before the start
        self._places: tuple[str, str] | None = None  # of the runtime's configuration and of the first process's number

    def attach(self, handle: Handle) -> Session:
        session = super().attach(handle)
        if not (Path(handle.folder) / "init").exists():
            with self._lock:
                self._attached.add(handle.folder)  # Podman sets a container up for that
        return session

    def _connect(self, target: str, patience: float) -> Client:
        client = Client(target.replace("tcp://", "http://", 1), "", patience)
        told = client.ping().get("libpod-api-version", "")
        if not told:
            raise EngineError(500, "this is no Podman: it does not tell a libpod API version", "GET /_ping")
        if int(told.partition(".")[0]) < 4:
            raise EngineError(400, f"client version 4.0.0 is too new: this Podman is {told}", "GET /_ping")
        client.prefix = "/v4.0.0/libpod"
        self._version = told
        return client

    def _look(self, client: Client) -> Facts:
        peer = client.peer()
        environ = environment_of(peer)
        limits = frozenset(("cpu", "memory", "pids"))
        machine, rootless, init = "", False, True
        if peer is not None and _is_roots(peer.pid):
            # What the long question would tell (it takes Podman a fifth of a container's start) can be seen from here.
            root = Facts(version="", architecture="", peer=peer, cdi=True, cdi_dirs=()).root
            seen = [resolved(root, path) if root else path for path in _INITS]
            init = any(os.path.exists(path) for path in seen) or on_path("catatonit", root, environ)
        else:
            host = client.call("GET", "/info")["host"]
            rootless = bool((host.get("security") or {}).get("rootless"))
            machine = str(host.get("arch", ""))
            limits = limits & frozenset(host.get("cgroupControllers") or ())
            root = ""
        return Facts(
            version=self._version,
            architecture=architecture(machine),
            peer=peer,
            cdi=True,
            cdi_dirs=podman_spec_dirs(self._version, root, environ),
            limits=limits,
            init=init,
            rootless=rootless,
            seccomp=True,
            swap=os.path.exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
            or os.path.exists("/sys/fs/cgroup/cgroup.controllers"),
        )

    def _body(self, form: rendering.Form) -> dict[str, Any]:
        workload, devices = form.workload, form.devices
        limits = workload.limits
        resources: dict[str, Any] = {"pids": {"limit": -1 if limits.pids is None else limits.pids}}
        if limits.memory_bytes is not None:
            resources["memory"] = {"limit": limits.memory_bytes}
            if form.facts.swap:
                resources["memory"]["swap"] = limits.memory_bytes
        if limits.cpu_millis is not None:
            resources["cpu"] = {"quota": limits.cpu_millis * 100, "period": 100_000}
        body: dict[str, Any] = {
            "image": form.image,
            "env": dict(workload.env),
            **({"work_dir": workload.workdir} if workload.workdir else {}),
            "create_working_dir": True,
            "labels": form.labels,
            "terminal": workload.tty,
            "stdin": workload.interactive or workload.tty,
            "init": form.init,
            "netns": {"nsmode": "bridge" if workload.network == "private" else workload.network},
            "httpproxy": False,
            "stop_timeout": int(-(-workload.grace_seconds // 1)),
            "resource_limits": resources,
            "log_configuration": {"driver": rendering.LOG_TYPE["podman"], "size": 2 * rendering.LOG_BYTES},
        }
        if workload.network == "private":
            body["networks"] = {form.network: {}}
        if hosts := rendering.peer_hosts(form):
            body["hostadd"] = hosts
        if workload.peers is not None and form.subnet:
            own = workload.peers.rank
            address = networks.addresses(form.subnet, workload.peers)[own]
            body["networks"] = {form.network: {"static_ips": [address]}}
            body["hostname"] = workload.peers.hosts[own].partition(".")[0]
        if workload.publish:
            body["portmappings"] = [
                {"host_ip": one.address, "host_port": one.host_port, "container_port": one.port, "protocol": "tcp"}
                for one in workload.publish
            ]
        if workload.workdir:
            body |= {"work_dir": workload.workdir, "create_working_dir": True}
        if workload.command:
            body["command"] = list(workload.command)
        if form.entrypoint is not None:
            body["entrypoint"] = list(form.entrypoint)
        if workload.user:
            body["user"] = workload.user
        plain_fields.tell("podman", body, workload)
        if unwanted := rendering.unwanted(form):
            body["unsetenv"] = unwanted
        if workload.read_only:
            body["image_volume_mode"] = "ignore"  # or they could be written to
            body["read_only_filesystem"] = True
            body["read_write_tmpfs"] = True  # or not even /dev/shm could be written to
        mounts = [*devices.mounts, *workload.mounts, *rendering.folders_in_volumes(form)]
        if mounts:
            body["mounts"] = [
                {
                    "type": "bind",
                    "source": one.source,
                    "destination": one.target,
                    "options": ["rbind", "rw" if one.writable else "ro"],
                }
                for one in mounts
            ]
        if whole := rendering.whole_volumes(form):
            # What the image has at that place is not copied into it: a volume is what was put into it.
            body["volumes"] = [{"Name": one.name, "Dest": one.target, "Options": [one.mode, "nocopy"]} for one in whole]
        if devices.way == "cdi":
            body["devices"] = [{"path": name} for name in devices.names]
        elif devices.nodes:
            body["devices"] = [{"path": f"{node.source}:{node.target}:{node.permissions}"} for node in devices.nodes]
        if devices.groups:
            body["groups"] = [str(group) for group in devices.groups]
        return body

    def _make(self, client: Client, name: str, body: dict[str, Any]) -> str:
        return str(client.call("POST", "/containers/create", json={**body, "name": name})["Id"])

    def _ignite(self, handle: Handle, client: Client) -> int:
        base = container(handle)
        pid, config = self._set_up(handle, client)
        if pid and observe_prestart.waits(pid):
            self._check_command(handle, pid)
            facts = self.facts()
            told = observe_prestart.told(facts.seen(config))
            self._remember_look(
                handle, observe_prestart.look(self._view(handle, pid), told) if told is not None else None
            )
            status = client.answer("POST", f"{base}/start", accept=(304,))[0]
            ttl.remember_init(Path(handle.folder), pid, handle.data.get("container", ""))
            return status
        return client.answer("POST", f"{base}/start", accept=(304,))[0]

    def _set_up(self, handle: Handle, client: Client) -> tuple[int, str]:
        """Everything but the command: its process that waits, and what the runtime was told."""
        with self._lock:
            attached = handle.folder in self._attached
            self._attached.discard(handle.folder)
        found = self._waiting(handle, client) if attached else (0, "")
        if found[0]:
            return found
        client.answer("POST", container(handle) + "/init", accept=(304, 409, 500))  # if it cannot, the start says why
        return self._waiting(handle, client)

    def _waiting(self, handle: Handle, client: Client) -> tuple[int, str]:
        """Podman keeps both in files whose places differ by the container's id alone: it is asked for them once."""
        own = handle.data.get("container", "")
        if own and self._places is not None:
            config, pidfile = (place.format(id=own) for place in self._places)
            pid = _written(self.facts().seen(pidfile))
            if pid and observe_prestart.waits(pid) and is_of(pid, own):
                return pid, config
        document = client.call("GET", container(handle) + "/json")
        config, pidfile = (str(document.get(key) or "") for key in ("OCIConfigPath", "PidFile"))
        if own and own in config and own in pidfile and not {"{", "}"} & set(config + pidfile):
            self._places = (config.replace(own, "{id}"), pidfile.replace(own, "{id}"))
        return int(document["State"].get("Pid") or 0), config

    def _events_path(self, filters: str) -> str:
        return "/events" + query(stream=True, filters=filters)

    def _forbid_restart(self, handle: Handle) -> None:
        self.ask(handle, "POST", container(handle) + "/update" + query(restartPolicy="no"), json={}, accept=(404, 409))

    def _given(self, document: dict[str, Any]) -> Given:
        """Podman does not tell rules, nor devices by CDI name; both are in what it wrote for the runtime."""
        from dibs.backends.engines.external import Given
        from dibs.backends.engines.process_view import STANDARD

        try:
            file = self.facts().seen(str(document.get("OCIConfigPath") or "/"))
        except OSError:
            return Given()
        for _ in range(10):
            try:
                with open(file, "rb") as opened:
                    linux = msgspec.json.decode(opened.read()).get("linux") or {}
                break
            except (FileNotFoundError, msgspec.DecodeError):
                if not os.path.isdir(os.path.dirname(file)):
                    return Given()  # not visible from here: what it was asked for has to do
                time.sleep(0.02)  # it is written anew for each start
            except OSError:
                return Given()
        else:
            return Given()
        rules = []
        for rule in (linux.get("resources") or {}).get("devices") or ():
            if rule.get("allow"):
                numbers = ":".join("*" if rule.get(key) is None else str(rule[key]) for key in ("major", "minor"))
                rules.append(f"{rule.get('type') or 'a'} {numbers} {rule.get('access') or 'rwm'}")
        nodes = tuple(
            NodeFact(one["path"], one["type"], int(one.get("major") or 0), int(one.get("minor") or 0))
            for one in linux.get("devices") or ()
            if one.get("type") in ("b", "c") and one["path"].removeprefix("/dev/") not in STANDARD
        )
        return Given(tuple(rules), nodes)

    def _stats(self, handle: Handle) -> Usage:
        document = self.ask(handle, "GET", "/containers/stats" + query(containers=identity(handle), stream=False))
        stats = document["Stats"][0]
        host = self.ask(handle, "GET", container(handle) + "/json")["HostConfig"]
        return Usage(
            cpu_seconds=int(stats.get("CPUNano") or 0) / 1e9,
            memory_bytes=int(stats.get("MemUsage") or 0),
            memory_limit=int(host.get("Memory") or stats.get("MemLimit") or 0),
            cpus=host["NanoCpus"] / 1e9 if host.get("NanoCpus") else float(os.cpu_count() or 1),
        )


def _is_roots(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == 0
    except OSError:
        return False


def _written(path: str) -> int:
    """The number in a file; 0 if there is none."""
    try:
        with open(path) as file:
            text = file.read().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
