"""The body of `POST /sandboxes` → our request. Pure: looks at nothing but what it is given, and finds every problem.

OpenSandbox's body has three free maps. `resourceLimits` carries what is limited (cpu, memory, pids, gpu in every short
form, vendor keys), `resourceRequests` what Kubernetes would reserve of it, `extensions` all that OpenSandbox has no
word for, under `dibs.`. A key that nothing here acts on is refused and named, with the known ones: nothing is dropped.

Problems name the field as the client wrote it: `resourceLimits.gpu`, not `gpu`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dibs.backends.installed import ON_HOST, made_from_image
from dibs.errors import DibsError, InvalidRequest, Problem, quoted
from dibs.gateway.opensandbox.volumes import read_volumes
from dibs.quantity import Quantity
from dibs.request.gpu import VENDORS, parse_gpu
from dibs.request.parse import VENDOR_KEYS
from dibs.request.spec import SandboxSpec, parse_spec

KEEP_ALIVE = ["tail", "-f", "/dev/null"]  # what OpenSandbox's clients send by default
FIELDS = (
    "image", "snapshotId", "templateId", "entrypoint", "timeout", "resourceLimits", "resourceRequests", "env",
    "metadata", "lifecycle", "platform", "networkPolicy", "credentialProxy", "secureAccess", "volumes", "extensions",
)  # fmt: skip
RESOURCES = ("cpu", "memory", "gpu", "pids", *(f"{vendor}.com/gpu" for vendor in VENDORS))
# extension → our field. Those that are text go over as they are; the others have a reader below.
EXTENSIONS = {
    "dibs.claim": "claim",
    "dibs.where": "where",
    "dibs.device": "device",
    "dibs.allow-busy": "allow_busy",
    "dibs.backend": "backend",
    "dibs.wait": "wait",
    "dibs.name": "name",
    "dibs.network": "network",
    "dibs.user": "user",
    "dibs.workdir": "workdir",
    "dibs.grace": "grace",
    "dibs.shm-size": "shm",
    "dibs.read-only": "read_only",
    "dibs.idempotency-key": "",
}
RESERVED_METADATA = "opensandbox.io/"
LONGEST_KEY = 255
_KEPT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_ARCHITECTURES = ("amd64", "arm64")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the reading of a body depends on: the administrator's settings, and ways to look things up by name."""

    images: frozenset[str] = frozenset({"host"})  # the names that `local` knows
    mounts_allow: tuple[str, ...] = ()
    longest_ttl: float | None = None
    kept_claim: Callable[[str], dict[str, Any]] | None = None
    snapshot: Callable[[str], tuple[str, str]] | None = None  # id → (backend, image); raises NotFound


class Wanted(msgspec.Struct, frozen=True):
    """A sandbox as asked for, and what is remembered with it so that it can be shown as it was asked."""

    spec: SandboxSpec
    annotations: dict[str, str]
    idempotency_key: str | None = None


def read_create(body: bytes, rules: Rules) -> Wanted:
    """The whole request, or InvalidRequest with every problem in it."""
    reader = _Reader(decode_object(body), rules)
    wanted = reader.read()
    if wanted is None or reader.problems:
        raise InvalidRequest(reader.problems)
    return wanted


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. What else may be in there is refused with its place."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"this is not JSON: {str(error) or 'it is nested too deeply'}", field="body", code="BODY_INVALID",
            remedy="send one JSON object",
        ) from error  # fmt: skip
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", field="body", code="BODY_INVALID")
    return value


class _Reader:
    """Reads one body. `mapping` becomes what `parse_spec` takes; `problems` all that is wrong."""

    def __init__(self, body: dict[str, Any], rules: Rules) -> None:
        # null says the same as leaving it out, as in the clients that send it
        self.body = {key: value for key, value in body.items() if value is not None}
        self.rules = rules
        self.problems: list[Problem] = []
        self.mapping: dict[str, Any] = {}
        self.notes: dict[str, str] = {}

    def refuse(self, code: str, field: str, value: Any, reason: str, remedy: str = "") -> None:
        self.problems.append(Problem(code, field, quoted(value)[1:-1], reason, remedy))

    def read(self) -> Wanted | None:
        for key in self.body:
            if key not in FIELDS:
                known = f"the known ones are {', '.join(FIELDS)}"
                self.refuse("UNKNOWN_FIELD", key, self.body[key], "there is no such field", known)
        self.resources()
        extensions = self.extensions()
        self.source()
        self.entrypoint()
        self.timeout()
        self.plain_maps()
        self.platform()
        self.network()
        self.refusals()
        self.volumes()
        if self.mapping.get("grace") is None:
            self.mapping["grace"] = 0  # "kill" means at once to OpenSandbox's clients
        try:
            spec = parse_spec(self.mapping)
        except InvalidRequest as error:
            self.problems += [_renamed(problem) for problem in error.problems]
            return None
        return Wanted(spec, self.notes, extensions.get("dibs.idempotency-key"))

    # -- the three free maps ----------------------------------------------------------------------------------------

    def texts(self, field: str) -> dict[str, Any]:
        """A map of names to texts. Numbers are taken for the texts that they print as."""
        value = self.body.get(field, {})
        if not isinstance(value, Mapping):
            self.refuse("MAP_INVALID", field, value, "must be an object of names and texts")
            return {}
        found: dict[str, Any] = {}
        for key, text in value.items():
            if isinstance(text, bool) or not isinstance(text, str | int | float):
                said = "null" if text is None else text
                self.refuse("MAP_INVALID", f"{field}.{key}", said, "must be text", "put it in quotes")
            else:
                found[key] = text if isinstance(text, str) else str(text)
        return found

    def resources(self) -> None:
        limits = self.texts("resourceLimits")
        requests = self.texts("resourceRequests")
        for field, values in (("resourceLimits", limits), ("resourceRequests", requests)):
            for key in [key for key in values if key not in RESOURCES]:
                known = f"the known ones are {', '.join(RESOURCES)}; all else is said in extensions, under dibs."
                text = values.pop(key)
                self.refuse("UNKNOWN_RESOURCE", f"{field}.{key}", text, "dibs does not know this resource", known)
        self.mapping |= limits
        for key, asked in requests.items():
            self.agree(key, asked, limits.get(key))
        if limits:
            self.notes["opensandbox.resources"] = msgspec.json.encode(limits).decode()

    def agree(self, key: str, asked: str, limit: str | None) -> None:
        """What is requested must be what is limited: dibs books devices, but no part of cpu or memory."""
        field = f"resourceRequests.{key}"
        same = f"make it the same as resourceLimits.{key}, or leave it out"
        if limit is None:
            reason = f"there is no resourceLimits.{key}; dibs sets limits and reserves nothing without one"
            self.refuse("REQUEST_WITHOUT_LIMIT", field, asked, reason, f"say it in resourceLimits.{key}")
            return
        before = len(self.problems)
        if key == "gpu" or key in VENDOR_KEYS:
            if parse_gpu(asked, field, self.problems) != parse_gpu(limit, field, []) and before == len(self.problems):
                reason = f"resourceLimits.{key} is {limit}: a device is held whole or not at all"
                self.refuse("REQUEST_NOT_LIMIT", field, asked, reason, same)
            return
        try:
            wanted, most = Quantity.parse(asked.strip()), Quantity.parse(limit.strip())
        except ValueError as error:
            if not _quantity(asked):
                self.refuse("QUANTITY_INVALID", field, asked, str(error).partition(": ")[2] or str(error), same)
            return  # a bad limit is told where it stands
        if wanted > most:
            self.refuse("REQUEST_NOT_LIMIT", field, asked, f"more than resourceLimits.{key}, which is {limit}", same)
        elif wanted < most:
            reason = f"less than resourceLimits.{key} ({limit}): dibs cannot reserve a part and allow the rest"
            self.refuse("REQUEST_NOT_LIMIT", field, asked, reason, same)

    def extensions(self) -> dict[str, str]:
        values = self.texts("extensions")
        if "poolRef" in values:
            text = values.pop("poolRef")
            self.refuse("POOLS_NOT_OFFERED", "extensions.poolRef", text, "there are no pools here", "leave it out")
        for key in [key for key in values if key not in EXTENSIONS]:
            known = f"the known ones are {', '.join(EXTENSIONS)}"
            self.refuse("UNKNOWN_EXTENSION", f"extensions.{key}", values.pop(key), "dibs does not know it", known)
        for key, text in values.items():
            field = EXTENSIONS[key]
            if key == "dibs.claim":
                self.claim(text)
            elif key == "dibs.where":
                self.mapping["where"] = _list_in(text) or text
            elif key == "dibs.device":
                self.mapping["device"] = [part.strip() for part in text.split(",")]
            elif key in ("dibs.allow-busy", "dibs.read-only"):
                self.flag(key, field, text)
            elif key == "dibs.idempotency-key":
                if not 0 < len(text) <= LONGEST_KEY or not text.isprintable():
                    reason = f"must be 1 to {LONGEST_KEY} printable characters"
                    self.refuse("IDEMPOTENCY_KEY_INVALID", f"extensions.{key}", text, reason)
            else:
                self.mapping[field] = text
        if values:
            self.notes["opensandbox.extensions"] = msgspec.json.encode(values).decode()
        return values

    def flag(self, key: str, field: str, text: str) -> None:
        if text not in ("true", "false"):
            self.refuse("FLAG_INVALID", f"extensions.{key}", text, "must be true or false")
        elif text == "true":
            self.mapping[field] = True

    def claim(self, text: str) -> None:
        """A claim as JSON or YAML, or the name of one that is kept. Never a path: the files here are not theirs."""
        field = "extensions.dibs.claim"
        if _KEPT.fullmatch(text.strip()) and self.rules.kept_claim is not None:
            try:
                self.mapping["claim"] = self.rules.kept_claim(text.strip())
            except DibsError as error:
                self.problems += [Problem(p.code, field, p.value, p.reason, p.remedy) for p in error.problems]
            return
        from dibs.devices.yaml_documents import Unreadable, documents

        try:
            found = [document for document in documents(text.encode()) if document is not None]
        except Unreadable as error:
            self.refuse("CLAIM_INVALID", field, text, f"it cannot be read as YAML or JSON: {error}")
            return
        if len(found) != 1 or not isinstance(found[0], dict):
            remedy = "give one ResourceClaim as text, or the name of a kept one"
            self.refuse("CLAIM_INVALID", field, text, "this is not one claim", remedy)
            return
        self.mapping["claim"] = found[0]

    # -- what it is made from ---------------------------------------------------------------------------------------

    def source(self) -> None:
        given = [name for name in ("image", "snapshotId", "templateId") if name in self.body]
        if "templateId" in given:
            reason = "there are no templates here"
            self.refuse("TEMPLATES_NOT_OFFERED", "templateId", self.body["templateId"], reason, "give an image")
        if len(given) != 1:
            said = ", ".join(given)
            reason = "only one of them can be the source" if given else "nothing says what the sandbox is made from"
            self.refuse("SOURCE_INVALID", "image", said, reason, "give exactly one of image and snapshotId")
        if "snapshotId" in given:
            self.snapshot()
        if "image" in given:
            self.image()

    def snapshot(self) -> None:
        asked = self.body["snapshotId"]
        if not isinstance(asked, str) or self.rules.snapshot is None:
            self.refuse("SNAPSHOT_INVALID", "snapshotId", asked, "this is not the id of a snapshot")
            return
        try:
            backend, image = self.rules.snapshot(asked)
        except DibsError as error:
            self.problems += [Problem(p.code, "snapshotId", asked, p.reason, p.remedy) for p in error.problems]
            return
        wanted = self.mapping.get("backend", "auto")
        if wanted not in ("auto", backend):
            reason = f"the snapshot is on {backend}"
            self.refuse("CONFLICT", "extensions.dibs.backend", wanted, reason, f"leave it out, or write {backend}")
        self.mapping |= {"backend": backend, "image": image}
        self.notes["opensandbox.snapshotId"] = asked

    def image(self) -> None:
        image = self.body["image"]
        if not isinstance(image, Mapping) or not isinstance(image.get("uri"), str) or not image["uri"]:
            self.refuse("IMAGE_INVALID", "image", image, "must be an object with a uri", 'write {"uri": "host"}')
            return
        for key in image:
            if key not in ("uri", "auth"):
                self.refuse("UNKNOWN_FIELD", f"image.{key}", image[key], "there is no such field", "uri and auth are")
        if image.get("auth") is not None:
            reason = "dibs hands no passwords to a registry"
            remedy = "pull the image on the host first, or log the engine in to its registry"
            self.refuse("IMAGE_AUTH_NOT_OFFERED", "image.auth", "(not shown)", reason, remedy)
        uri: str = image["uri"]
        self.notes["opensandbox.image"] = uri
        self.mapping["image"] = uri
        backend = self.mapping.get("backend", "auto")
        if uri in self.rules.images and backend == "auto":
            self.mapping["backend"] = ON_HOST
        elif uri == "host" and made_from_image(backend):
            reason = f"host is the root of this host, which {backend} does not run in"
            self.refuse("IMAGE_UNKNOWN", "image.uri", uri, reason, "name an image, or leave dibs.backend out")

    def entrypoint(self) -> None:
        words = self.body.get("entrypoint", KEEP_ALIVE)
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            self.refuse("ENTRYPOINT_INVALID", "entrypoint", words, "must be a list of words, and not empty")
            return
        self.mapping["command"] = words
        backend = self.mapping.get("backend", "auto")
        if backend == "auto" or made_from_image(backend):
            self.mapping["entrypoint"] = []  # theirs stands in place of the image's own
        self.notes["opensandbox.entrypoint"] = msgspec.json.encode(words).decode()

    # -- the rest ---------------------------------------------------------------------------------------------------

    def timeout(self) -> None:
        value = self.body.get("timeout")
        longest = self.rules.longest_ttl
        if value is None:
            if longest is not None:
                self.mapping["ttl"] = longest
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse("TIMEOUT_INVALID", "timeout", value, "must be a whole number of seconds, at least 1")
        elif longest is not None and value > longest:
            reason = f"longer than the {longest:g} seconds that the administrator allows"
            self.refuse("TIMEOUT_INVALID", "timeout", value, reason, "ask for less, and renew it in time")
        else:
            self.mapping["ttl"] = value

    def plain_maps(self) -> None:
        self.mapping["env"] = self.texts("env")
        metadata = self.texts("metadata")
        self.problems += metadata_problems(metadata)
        self.mapping["labels"] = metadata

    def platform(self) -> None:
        asked = self.body.get("platform")
        if asked is None:
            return
        if not isinstance(asked, Mapping) or set(asked) - {"os", "arch"} or not asked.get("os"):
            self.refuse("PLATFORM_INVALID", "platform", asked, 'must be {"os": "linux", "arch": "amd64"} or the like')
            return
        if asked["os"] != "linux":
            reason = "only linux runs here"
            self.refuse("PLATFORM_INVALID", "platform.os", asked["os"], reason, "write linux, or leave it out")
            return
        if asked.get("arch") not in _ARCHITECTURES:
            reason = "this is not one of the choices"
            remedy = f"the choices are {', '.join(_ARCHITECTURES)}"
            self.refuse("PLATFORM_INVALID", "platform.arch", asked.get("arch"), reason, remedy)
            return
        self.mapping["platform"] = f"linux/{asked['arch']}"
        self.notes["opensandbox.platform"] = asked["arch"]

    def network(self) -> None:
        """All or nothing can be delivered exactly; a list of names needs a filter that dibs does not have."""
        policy = self.body.get("networkPolicy")
        if policy is None:
            return
        field = "networkPolicy"
        if not isinstance(policy, Mapping) or policy.get("defaultAction", "deny") not in ("allow", "deny"):
            self.refuse("NETWORK_POLICY_INVALID", field, policy, 'defaultAction must be "allow" or "deny"')
            return
        for key in policy:
            if key not in ("defaultAction", "egress"):
                known = "defaultAction and egress are known"
                self.refuse("UNKNOWN_FIELD", f"{field}.{key}", policy[key], "there is no such field", known)
        if policy.get("egress"):
            reason = "dibs cannot filter a network by name"
            remedy = "without rules, defaultAction deny gives no network at all, and allow gives a private one"
            self.refuse("NETWORK_POLICY_NOT_OFFERED", f"{field}.egress", policy["egress"], reason, remedy)
            return
        network = "private" if policy.get("defaultAction", "deny") == "allow" else "none"
        asked = self.mapping.get("network", network)
        if asked != network:
            reason = f"networkPolicy means {network}"
            self.refuse("CONFLICT", "extensions.dibs.network", asked, reason, "say it once")
        self.mapping["network"] = network

    def refusals(self) -> None:
        """What no backend offers: refused, never ignored. Said with nothing in it, it asks for nothing."""
        hooks = self.body.get("lifecycle")
        if hooks is not None and hooks not in ({}, {"periodic": []}):
            remedy = "run it with the entrypoint, or as a command when the sandbox is ready"
            self.refuse("LIFECYCLE_NOT_OFFERED", "lifecycle", hooks, "dibs runs no hooks in a sandbox", remedy)
        proxy = self.body.get("credentialProxy")
        if proxy is not None and proxy not in ({}, {"enabled": False}):
            reason = "there is no proxy for credentials here"
            self.refuse("CREDENTIAL_PROXY_NOT_OFFERED", "credentialProxy", "(not shown)", reason, "leave it out")
        if not isinstance(self.body.get("secureAccess", False), bool):
            reason = "must be true or false; dibs always gives each sandbox a token of its own"
            self.refuse("FLAG_INVALID", "secureAccess", self.body["secureAccess"], reason)

    def volumes(self) -> None:
        if "volumes" in self.body:
            mounts, named = read_volumes(self.body["volumes"], self.rules.mounts_allow, self.problems)
            if mounts:
                self.mapping["mounts"] = mounts
            if named:
                self.mapping["volumes"] = named


def metadata_problems(metadata: Mapping[str, Any]) -> list[Problem]:
    return [
        Problem(
            "METADATA_RESERVED", f"metadata.{quoted(key)[1:-1]}", quoted(value)[1:-1],
            f"keys below {RESERVED_METADATA} are the system's", "take another key",
        )
        for key, value in metadata.items()
        if key.startswith(RESERVED_METADATA)
    ]  # fmt: skip


def _quantity(text: str) -> bool:
    try:
        Quantity.parse(text.strip())
    except ValueError:
        return False
    return True


def _list_in(text: str) -> list[str] | None:
    """Several expressions can be written as a JSON list of texts; most lists of CEL are not one."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        return None
    return found or None


_WRITTEN_AS = {
    "command": "entrypoint", "ttl": "timeout", "labels": "metadata", "image": "image.uri", "root": "image.uri",
    "mounts": "volumes", "platform": "platform", "env": "env",
    **{field: f"extensions.{key}" for key, field in EXTENSIONS.items() if field},
    **{key: f"resourceLimits.{key}" for key in RESOURCES},
}  # fmt: skip


def written_as(field: str) -> str:
    """A field of ours, as it is called in OpenSandbox's body."""
    if field in _WRITTEN_AS:
        return _WRITTEN_AS[field]
    head = re.match(r"[A-Za-z_]+", field)
    if head and head.group(0) in _WRITTEN_AS:
        return _WRITTEN_AS[head.group(0)] + field[head.end() :]
    return field


def _renamed(problem: Problem) -> Problem:
    return msgspec.structs.replace(problem, field=written_as(problem.field))
