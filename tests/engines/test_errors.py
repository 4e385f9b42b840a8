"""Every message of an engine that is known has a cause and, where there is one, a remedy; none is lost."""

from __future__ import annotations

import errno
import re

import pytest

from dibs.backends.engines.client import EngineError, Unreachable, message_of
from dibs.backends.engines.errors import TABLES, known, translate, unreachable
from dibs.errors import BackendUnavailable, CommandFailed, Conflict, InvalidRequest, NotFound

# As the engines wrote them, with the code that they must get.
RUNC = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: "
)
SAID: dict[str, list[tuple[str, str]]] = {
    "docker": [
        (RUNC + 'unable to start container process: exec: "x": executable file not found in $PATH: unknown', "COMMAND_NOT_FOUND"),  # noqa: E501
        ('exec: "/no": stat /no: no such file or directory: unknown', "COMMAND_NOT_FOUND"),
        ("[FATAL tini (7)] exec nope failed: No such file or directory", "COMMAND_NOT_FOUND"),
        ('OCI runtime exec failed: exec: "/etc/passwd": permission denied: unknown', "COMMAND_NOT_EXECUTABLE"),
        ("exec /bin/sh: exec format error", "COMMAND_NOT_EXECUTABLE"),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=9", "CDI_NAME_UNKNOWN"),
        (
            'CDI device injection failed: failed to inject devices: failed to stat CDI host device "/dev/nvidia0": no such file',  # noqa: E501
            "CDI_SPEC_UNUSABLE",
        ),
        (RUNC + "error during container init: error creating device nodes: mount /dev/x: no such file", "CDI_SPEC_UNUSABLE"),  # noqa: E501
        (RUNC + "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown", "DEVICE_RUNTIME_FAILED"),  # noqa: E501
        ('could not select device driver "" with capabilities: [[gpu]]', "CDI_OFF"),
        ("unable to find user nobodyatall: no matching entries in passwd file", "USER_UNKNOWN"),
        ("Minimum memory limit allowed is 6MB", "LIMIT_INVALID"),
        ("Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", "LIMIT_INVALID"),
        ("Your kernel does not support memory limit capabilities", "LIMIT_NOT_ENFORCEABLE"),
        ('invalid mount config for type "bind": bind source path does not exist: /nope/x', "MOUNT_INVALID"),
        ("runc create failed: read init-p: connection reset by peer: unknown", "RUNTIME_DIED"),
        ("write /var/lib/docker/tmp/x: no space left on device", "ENGINE_DISK_FULL"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "PLATFORM_MISMATCH"),
        ("manifest for busybox:none not found: manifest unknown: manifest unknown", "IMAGE_NOT_FOUND"),
        ("pull access denied for x, repository does not exist or may require 'docker login'", "REGISTRY_DENIED"),
        ('Get "http://localhost/v2/": dial tcp [::1]:80: connect: connection refused', "REGISTRY_UNREACHABLE"),
        (
            'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on 10.0.0.1:53: no such host',  # noqa: E501
            "REGISTRY_UNREACHABLE",
        ),
        ("invalid reference format: repository name (library/UP) must be lowercase", "IMAGE_INVALID"),
        ("Error processing tar file(exit status 1): unexpected EOF", "IMAGE_INVALID"),
        ("container rootfs is marked read-only", "READ_ONLY"),
        ("extraction point is not a directory", "PATH_UNSUITABLE"),
        ('Conflict. The container name "/dibs-x" is already in use by container "abc"', "CONTAINER_EXISTS"),
        ("client version 1.44 is too new. Maximum supported API version is 1.40", "ENGINE_TOO_OLD"),
        ("No such image: nope:1", "IMAGE_NOT_FOUND"),
        ("No such exec instance: abc", "NOT_FOUND"),
        ("No such container: cfdfc04b", "CONTAINER_GONE"),
        ("Could not find the file /x in container abc", "NOT_FOUND"),
        ("container cfdf is not running", "NOT_RUNNING"),
        ("Container abc is paused, unpause the container before exec", "NOT_RUNNING"),
        ("authorization denied by plugin opa: no", "ENGINE_DENIED"),
    ],
    "podman": [
        ('runc create failed: exec: "nope": executable file not found in $PATH: OCI runtime attempted …', "COMMAND_NOT_FOUND"),  # noqa: E501
        ("ERROR (catatonit:6): failed to exec pid1: No such file or directory", "COMMAND_NOT_FOUND"),
        ('runc: exec failed: exec: "/etc/passwd": permission denied: OCI permission denied', "COMMAND_NOT_EXECUTABLE"),
        ("exec container process `/bin/sh`: Exec format error: OCI runtime error", "COMMAND_NOT_EXECUTABLE"),
        ("setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=9", "CDI_NAME_UNKNOWN"),
        ("setting up CDI devices: failed to inject devices: failed to stat CDI host device", "CDI_SPEC_UNUSABLE"),
        (
            "runc: error during container init: error creating device nodes: mount /dev/simgpu0: no such file or directory: OCI runtime attempted to invoke a command that was not found",  # noqa: E501
            "CDI_SPEC_UNUSABLE",
        ),
        ("nvidia-container-cli: ldcache error: open failed", "DEVICE_RUNTIME_FAILED"),
        ("unable to find user nobodyatall: no matching entries in passwd file", "USER_UNKNOWN"),
        ("runc: error setting cgroup config for procHooks process: unable to set memory limit to 1000", "LIMIT_INVALID"),  # noqa: E501
        ("invalid config: cpus must be less than the number of processors", "LIMIT_INVALID"),
        ("crun: the requested cgroup controller `cpu` is not available: OCI runtime error", "LIMIT_NOT_ENFORCEABLE"),
        ("statfs /nope/x: no such file or directory", "MOUNT_INVALID"),
        ("copying layers: write /var/tmp/x: no space left on device", "ENGINE_DISK_FULL"),
        ("choosing an image from manifest list: no image found in manifest list for architecture arm64", "PLATFORM_MISMATCH"),  # noqa: E501
        ("reading manifest 9 in docker.io/library/busybox: manifest unknown", "IMAGE_NOT_FOUND"),
        ("reading manifest latest: requested access to the resource is denied", "REGISTRY_DENIED"),
        (
            'initializing source docker://localhost/none:1: pinging container registry localhost: Get "https://localhost/v2/": dial tcp [::1]:443: connect: connection refused',  # noqa: E501
            "REGISTRY_UNREACHABLE",
        ),
        ('short-name "x" did not resolve to an alias and no unqualified-search registries are defined', "IMAGE_INVALID"),  # noqa: E501
        ("payload does not match any of the supported image formats", "IMAGE_INVALID"),
        ("container rootfs is marked read-only", "READ_ONLY"),
        ('"/etc/passwd": not a directory', "PATH_UNSUITABLE"),
        ('creating container storage: the container name "dibs-x" is already in use by abc', "CONTAINER_EXISTS"),
        ("failed to find image nope:1: nope:1: image not known", "IMAGE_NOT_FOUND"),
        ("no such exec session", "NOT_FOUND"),
        ('no container with name or ID "p2" found: no such container', "CONTAINER_GONE"),
        ("no container with ID 0b73fc4d5f30 found in database: no such container", "CONTAINER_GONE"),
        ("runc create failed: waiting for init preliminary setup: read init-p: connection reset by peer", "RUNTIME_DIED"),  # noqa: E501
        ('reading information about layer "7a04e57ea3cc": layer not known', "CONTAINER_BROKEN"),
        ('getting container from store "37c5c993e0ac": container not known', "CONTAINER_BROKEN"),
        ("can only create exec sessions on running containers: container state improper", "NOT_RUNNING"),
        ('"/x" could not be found on container abc: no such file or directory', "NOT_FOUND"),
        ('cannot set up namespace using "/usr/bin/newuidmap": exit status 1', "ROOTLESS_LIMITED"),
        ("runc create failed: unable to start container process: unable to setup user: invalid argument", "ROOTLESS_LIMITED"),  # noqa: E501
        ("can not pause containers on rootless containers with cgroup V1: this container does not have a cgroup", "ROOTLESS_LIMITED"),  # noqa: E501
        ("setting up Pasta: pasta failed with exit code 1: Failed to open() /dev/net/tun: Permission denied", "NETWORK_UNAVAILABLE"),  # noqa: E501
        ("runc create failed: error setting rlimits for ready process: error setting rlimit type 7", "ENGINE_LIMITED"),
        ("crun: cgroups in hybrid mode not supported: OCI runtime error", "ENGINE_BROKEN"),
    ],
}  # fmt: skip
CASES = [(engine, message, code) for engine, said in SAID.items() for message, code in said]


@pytest.mark.parametrize(("engine", "message", "code"), CASES)
def test_a_known_message_has_its_cause_and_keeps_its_words(engine: str, message: str, code: str) -> None:
    error = translate(engine, EngineError(500, message), field="x", value="y")
    assert error.code == code
    assert " ".join(message.split()) in str(error)


@pytest.mark.parametrize("engine", sorted(TABLES))
def test_every_row_is_met_by_a_message(engine: str) -> None:
    met = {known(engine, message) for message, _ in SAID[engine]}
    unmet = [row.words for row in TABLES[engine] if row not in met]
    assert unmet == []


@pytest.mark.parametrize("engine", sorted(TABLES))
def test_every_row_says_a_cause_in_plain_words(engine: str) -> None:
    for row in TABLES[engine]:
        re.compile(row.words)
        assert row.words == row.words.lower(), row.words
        assert row.cause
        assert not row.cause.endswith(".")
        assert row.code.isupper()


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (404, NotFound), (409, Conflict), (500, BackendUnavailable)]
)
def test_an_unknown_message_is_kept_and_its_kind_is_by_its_status(status: int, kind: type[Exception]) -> None:
    error = translate("docker", EngineError(status, "the moon is\nfull", "POST /x"))
    assert isinstance(error, kind)
    assert "the moon is full (POST /x: " in str(error)


def test_a_missing_command_is_127_and_one_that_cannot_run_126() -> None:
    missing = translate("docker", EngineError(400, 'exec: "x": executable file not found in $PATH'))
    broken = translate("podman", EngineError(500, 'exec: "x": permission denied'))
    assert isinstance(missing, CommandFailed)
    assert isinstance(broken, CommandFailed)
    assert (missing.status, broken.status) == (127, 126)


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOENT, "ENGINE_NOT_RUNNING"),
        (errno.ECONNREFUSED, "ENGINE_NOT_RUNNING"),
        (errno.EACCES, "ENGINE_DENIED"),
        (errno.ECONNRESET, "ENGINE_UNREACHABLE"),
    ],
)
def test_an_engine_that_does_not_answer_is_reported_with_a_remedy(engine: str, number: int, code: str) -> None:
    error = unreachable(engine, Unreachable("/x.sock", OSError(number, "words")))
    assert (error.code, error.problems[0].value) == (code, "/x.sock")
    assert error.problems[0].remedy


def test_words_are_found_in_every_form_of_an_answer() -> None:
    assert message_of(b'{"message":"a"}') == "a"
    assert message_of(b'{"cause":"b","message":"","response":500}') == "b"
    assert message_of(b"plain\n") == "plain"
    assert message_of(b"") == "no reason was given"
