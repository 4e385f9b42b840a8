"""Applying container edits to an OCI runtime spec, and filling device nodes from the host.

Called by `Cache.inject`, by the command line, and by a runtime that applies edits itself (`fill_device_nodes`).
The given OCI spec is never changed: a new one is returned, or an `InjectError` with every problem is raised.
The only thing it does to the host is lstat.
"""

from __future__ import annotations

import os
import posixpath
import stat
from typing import Any, Final

import msgspec

from dibs.cdi.errors import InjectError, Problem, quoted
from dibs.cdi.names import CdiName, is_qualified_name
from dibs.cdi.spec import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount
from dibs.cdi.validate import NO_PERMISSIONS, edits_problems

OciSpec = dict[str, Any]
"""A decoded `config.json`. What we do not know in it is kept as it is."""

_TYPES: Final = ((stat.S_ISBLK, "b"), (stat.S_ISCHR, "c"), (stat.S_ISFIFO, "p"))
_FIFO: Final = "p"


def apply_edits(oci: OciSpec, edits: ContainerEdits, *, host_root: str = "/") -> OciSpec:
    """Return the OCI spec with the edits applied.

    Environment, device nodes, mounts, network devices and RDT settings replace what has the same name, path or
    destination. Hooks and device cgroup rules are added each time: applying the same edits twice doubles those.
    """
    problems = edits_problems(edits)
    if problems:
        raise InjectError(problems)
    filled = fill_device_nodes(edits, host_root=host_root)
    result = dict(oci)
    editor = _Editor(result)
    if filled.env:
        editor.add_env(filled.env)
    for node in filled.device_nodes:
        editor.add_device(node)
    for device in filled.net_devices:
        editor.at("linux", "netDevices")[device.host_interface_name] = {"name": device.name}
    if filled.mounts:
        editor.add_mounts(filled.mounts)
    for hook in filled.hooks:
        hooks = editor.at("hooks")
        hooks[hook.hook_name] = [*editor.items(hooks, hook.hook_name, "hooks"), _oci_hook(hook)]
    if filled.intel_rdt is not None:
        editor.at("linux")["intelRdt"] = _oci_rdt(filled.intel_rdt)
    editor.add_gids(filled.additional_gids)
    return result


def fill_device_nodes(edits: ContainerEdits, *, host_root: str = "/") -> ContainerEdits:
    """Return the edits with every device node completed from the host; all failures are raised together."""
    nodes: list[DeviceNode] = []
    problems: list[Problem] = []
    for index, node in enumerate(edits.device_nodes):
        try:
            nodes.append(fill_device_node(node, host_root=host_root))
        except InjectError as exc:
            problems += [Problem(f"deviceNodes[{index}]", problem.what) for problem in exc.problems]
    if problems:
        raise InjectError(problems)
    return msgspec.structs.replace(edits, device_nodes=tuple(nodes))


def fill_device_node(node: DeviceNode, *, host_root: str = "/") -> DeviceNode:
    """Complete one node: where it is on the host, and what it is.

    A node with a type and a major number (a pipe needs none) is taken at its word and may be missing on the
    host; only its file mode is looked up. Anything less is read from the host and must be a device node there.
    A symbolic link is not one: the engines do not follow it either.
    """
    host_path = node.host_path or node.path
    described = bool(node.type) and (node.major != 0 or node.type == _FIFO)
    try:
        info = os.lstat(os.path.join(host_root, host_path.lstrip("/")))
        found = next((letter for test, letter in _TYPES if test(info.st_mode)), "")
        failure = "" if found else "not a device node"
    except (OSError, ValueError) as exc:
        info, found, failure = None, "", getattr(exc, "strerror", None) or str(exc)
    if info is None or failure:
        if not described:
            raise InjectError([Problem("", f"host device {quoted(host_path)} cannot be used: {failure}")])
        return msgspec.structs.replace(node, host_path=host_path)
    mode = stat.S_IMODE(info.st_mode) if node.file_mode is None else node.file_mode
    node = msgspec.structs.replace(node, host_path=host_path, file_mode=mode)
    if described:
        return node
    if node.type and node.type != found:
        what = (
            f"device {quoted(node.path)} is declared as {quoted(node.type)}, but {quoted(host_path)} is {quoted(found)}"
        )
        raise InjectError([Problem("", what)])
    major, minor = node.major, node.minor
    if major == 0 and found != _FIFO:
        major, minor = os.major(info.st_rdev), os.minor(info.st_rdev)
    return msgspec.structs.replace(node, type=found, major=major, minor=minor)


def take_device_references(oci: OciSpec) -> tuple[OciSpec, list[CdiName]]:
    """Return the OCI spec without the `linux.devices` whose path is a qualified CDI name, and those names."""
    result = dict(oci)
    editor = _Editor(result)
    if oci.get("linux") is None:
        return result, []
    linux = editor.at("linux")
    kept: list[Any] = []
    names: list[CdiName] = []
    for device in editor.items(linux, "devices", "linux"):
        path = device.get("path") if isinstance(device, dict) else None
        if isinstance(path, str) and is_qualified_name(path):
            names.append(CdiName(path))
        else:
            kept.append(device)
    if names:
        linux["devices"] = kept
    return result, names


class _Editor:
    """Changes a shallow copy of an OCI spec: each branch is copied before its first change."""

    def __init__(self, oci: OciSpec) -> None:
        self.oci = oci
        self.owned: dict[tuple[str, ...], dict[str, Any]] = {}

    def at(self, *path: str) -> dict[str, Any]:
        """The object at a path, our own copy of it; made where it is missing."""
        if path in self.owned:
            return self.owned[path]
        parent = self.at(*path[:-1]) if len(path) > 1 else self.oci
        found = parent.get(path[-1])
        if found is not None and not isinstance(found, dict):
            raise InjectError([Problem(".".join(path), "the OCI spec must have an object here")])
        if found is None and path == ("process",):
            found = {"user": {"uid": 0, "gid": 0}, "cwd": ""}  # what the engines' own types start from
        parent[path[-1]] = self.owned[path] = dict(found or {})
        return self.owned[path]

    def items(self, parent: dict[str, Any], key: str, where: str) -> list[Any]:
        found = parent.get(key)
        if found is not None and not isinstance(found, list):
            raise InjectError([Problem(f"{where}.{key}", "the OCI spec must have a list here")])
        return list(found or ())

    def add_env(self, entries: tuple[str, ...]) -> None:
        process = self.at("process")
        env = self.items(process, "env", "process")
        place = {str(entry).partition("=")[0]: index for index, entry in enumerate(env)}
        for entry in entries:
            name = entry.partition("=")[0]
            if name in place:
                env[place[name]] = entry
            else:
                place[name] = len(env)
                env.append(entry)
        process["env"] = env

    def add_device(self, node: DeviceNode) -> None:
        device: dict[str, Any] = {"path": node.path, "type": node.type, "major": node.major, "minor": node.minor}
        if node.file_mode is not None:
            device["fileMode"] = node.file_mode
        for field, own in (("uid", node.uid), ("gid", node.gid)):
            value = own if own is not None else self.process_user(field)
            if value is not None:
                device[field] = value
        linux = self.at("linux")
        devices = [old for old in self.items(linux, "devices", "linux") if _get(old, "path") != node.path]
        linux["devices"] = [*devices, device]
        if node.type not in ("b", "c"):
            return
        rule: dict[str, Any] = {"allow": True, "type": node.type, "major": node.major, "minor": node.minor}
        if node.permissions != NO_PERMISSIONS:
            rule["access"] = node.permissions or "rwm"
        resources = self.at("linux", "resources")
        resources["devices"] = [*self.items(resources, "devices", "linux.resources"), rule]

    def process_user(self, field: str) -> int | None:
        """The process's own id, for nodes that name none; root's is left out."""
        value = _get(_get(self.oci.get("process"), "user"), field)
        return value if isinstance(value, int) and value > 0 else None

    def add_mounts(self, mounts: tuple[Mount, ...]) -> None:
        namespaces = _get(self.oci.get("linux"), "namespaces")
        mapped = any(_get(each, "type") == "user" for each in namespaces or ())
        present = self.items(self.oci, "mounts", "the spec")
        for mount in mounts:
            present = [old for old in present if _get(old, "destination") != mount.container_path]
            present.append(_oci_mount(mount, mapped=mapped))
        # A parent must be mounted before what is inside it; the sort is stable, so equals keep their order.
        self.oci["mounts"] = sorted(present, key=lambda each: _depth(str(_get(each, "destination") or "")))

    def add_gids(self, gids: tuple[int, ...]) -> None:
        wanted = [gid for gid in gids if gid != 0]
        if not wanted:
            return
        self.at("process")
        user = self.at("process", "user")
        present = self.items(user, "additionalGids", "process.user")
        for gid in wanted:
            if gid not in present:
                present.append(gid)
        user["additionalGids"] = present


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _depth(path: str) -> int:
    # posixpath keeps two leading slashes, which mean nothing here.
    clean = posixpath.normpath(path) if path else "."
    return clean.count("/") - (1 if clean.startswith("//") else 0)


def _oci_mount(mount: Mount, *, mapped: bool) -> dict[str, Any]:
    options = list(mount.options)
    if mapped and not {"idmap", "ridmap"} & set(options):
        # In a user namespace the files of a bind mount would otherwise belong to the overflow user.
        if "rbind" in options:
            options.append("ridmap")
        elif "bind" in options:
            options.append("idmap")
    result: dict[str, Any] = {"destination": mount.container_path, "source": mount.host_path}
    if mount.type:
        result["type"] = mount.type
    if options:
        result["options"] = options
    return result


def _oci_hook(hook: Hook) -> dict[str, Any]:
    result: dict[str, Any] = {"path": hook.path}
    if hook.args:
        result["args"] = list(hook.args)
    if hook.env:
        result["env"] = list(hook.env)
    if hook.timeout is not None:
        result["timeout"] = hook.timeout
    return result


def _oci_rdt(rdt: IntelRdt) -> dict[str, Any]:
    # The two formats have the same fields with the same names.
    built: dict[str, Any] = msgspec.to_builtins(rdt)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in built.items()}
