#!/usr/bin/env python3
"""Writes the generated parts of docs/: the delivery table, the fields of a request, the problem codes, the tests of the
silent-drop catalogue.

    scripts/generate_docs.py            write them
    scripts/generate_docs.py --check    write nothing; exit 1 if they are not current
    scripts/generate_docs.py --outputs  also run every page, and put the real output under each command that shows one

`make docs` calls it, and a test calls it with --check. A problem code without a line in MEANINGS is an error: a new
code needs its meaning here.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "dibs"
TO_FILL = "???"  # written as the output of a command, it is replaced by the real one

# code -> (exit code, meaning). The exit code is that of the error which usually carries it.
MEANINGS: dict[str, tuple[str, str]] = {
    "CLASS_MISSING": ("80", "the cluster has no such DeviceClass, and none that stands for it"),
    "EXEC_FAILED": ("86", "a cluster's node could not run a further command; its words are told"),
    "EXPIRY_FIXED": ("81", "the kubelet keeps the time to live of a pod, which can only be brought forward"),
    "KIND_NOT_INSTALLED": (
        "81",
        "the cluster does not have the kind of workload that is configured, or another version",
    ),
    "PATH_NOT_FOUND": ("89", "there is no such file or folder in the sandbox"),
    "PATH_REFUSED": ("80", "the kernel's own files (/proc, /sys, /dev) are not copied"),
    "PAUSE_UNSUPPORTED": ("81", "the backend cannot pause a sandbox"),
    "SANDBOX_GONE": ("89", "the pod of a sandbox is being deleted"),
    "SHELL_NEEDED": ("81", "it needs a POSIX shell in the image, which has none"),
    "TAR_MISSING": ("81", "files go in and out of a pod with the image's tar, and it has none"),
    "TEMPLATE_CONFLICT": ("80", "a request and the configured base template say different things; both are named"),
    "TEMPLATE_DEVICES": ("80", "a base template hands out devices; only requests do"),
    "TEMPLATE_INVALID": ("80", "the configured base template is not a pod template"),
    "TEMPLATE_UNREADABLE": ("91", "the file of the base template cannot be read"),
    "COUNT_NEEDED": ("80", "`all` was asked for on a cluster; say how many"),
    "EXACT_DEVICE_ON_CLUSTER": ("80", "an exact device was asked for on a cluster, where the scheduler chooses"),
    "EXTENDED_RESOURCE_CANNOT": ("80", "an extended resource was demanded for what only a claim can say"),
    "JOB_NOT_FOUND": ("89", "there is no such training job"),
    "JOB_NOT_OVER_GATEWAY": ("81", "`dibs train` runs jobs on this host; a gateway takes them from Kubeflow's clients"),
    "JOB_ENDING": ("88", "a job on a cluster is deleted, and its pods are still ending; ask again"),
    "QUOTA_NOT_ENFORCED": ("81", "the tenant has a quota, which a job on a cluster is not counted in"),
    "WAIT_UNSUPPORTED": ("81", "a cluster's scheduler decides how long a job waits"),
    "JOB_TAKEN_OVER": ("88", "another process drives this training job by now; this one lets go of it"),
    "KUBERNETES_OPTION_INVALID": ("80", "an option for Kubernetes is unknown or has the wrong type"),
    "MPI_NEEDS_ADDRESSES": ("81", "an MPI job of several nodes needs a backend that gives each rank its own address"),
    "PROGRAM_MISSING": ("86", "a program of the host that is needed is not installed"),
    "NO_FREE_PORT": ("86", "no port of the host is free for the ranks of a training job to meet at"),
    "RANK_NOT_FOUND": ("80", "a training job has no rank of that name; its ranks are named"),
    "UNSUPPORTED_ON_KUBERNETES": ("80", "a pod cannot be what was asked for; the field is named"),
    "ALLOCATION_CANCELLED": ("88", "the search for devices was cancelled by its caller"),
    "ALLOCATION_GAVE_UP": ("90", "the search for devices took more steps than allowed; simplify the claim"),
    "ARCHIVE_REFUSED": ("80", "a tar stream for `cp` is broken, or a member of it leads outside of its target"),
    "BACKEND_INVALID": ("80", "`backend` cannot be the name of a backend"),
    "BACKEND_UNAVAILABLE": ("86", "the backend cannot work on this host; the reason says what is missing"),
    "BACKEND_UNKNOWN": ("80", "there is no backend of that name"),
    "BODY_INVALID": (
        "80",
        "the body of a request to a gateway is not one JSON object, or not the one that belongs there",
    ),
    "CALLER_GONE": ("88", "the client of a gateway hung up, so nothing was made"),
    "CANNOT_ATTACH": ("81", "GPUs fit, but they cannot be attached; `dibs doctor` says why"),
    "CA_UNREADABLE": ("80", "the certificates of a context cannot be read"),
    "CEL_INVALID": ("80", "an expression of `--where` or of a claim is not valid CEL for devices; the place is named"),
    "CLAIM_GAVE_UP": ("80", "the search for devices for a claim was given up; simplify the claim"),
    "CLAIM_INVALID": ("80", "a claim breaks one of Kubernetes' rules, or its file cannot be used; the field is named"),
    "CLAIM_NOT_FOUND": ("89", "no claim is kept under that name; those that are kept are listed"),
    "CLAIM_UNREADABLE": ("80", "a resource claim is not JSON, or a value in it has the wrong type"),
    "CLAIM_UNSOLVABLE": ("80", "the claim cannot be decided on these devices; the reason says why"),
    "CLASS_FILE_INVALID": ("80", "a file of further device classes cannot be used; the place is named"),
    "COMMAND_INVALID": ("80", "there is no command, or it is not a list of words"),
    "COMMAND_NOT_EXECUTABLE": ("126", "the command is there but cannot be executed in the sandbox"),
    "COMMAND_NOT_FOUND": ("127", "there is no such command in the sandbox"),
    "COMMAND_UNKNOWN": ("89", "there is no background command of that id in the sandbox"),
    "CONFLICT": (
        "80, 88",
        "two parts of a request contradict each other (80), or a sandbox is in the wrong state (88)",
    ),
    "CONTEXTS_UNUSABLE": ("91", "the file of contexts cannot be read or written"),
    "CONTEXT_UNKNOWN": ("89", "there is no context of that name; `dibs context ls` shows them"),
    "COPY_FAILED": ("80", "files could not be copied; the reason is the system's"),
    "COPY_INVALID": ("80", "one side of `cp` must be `SANDBOX:/path`, and the source must exist"),
    "CREDENTIAL_PROXY_NOT_OFFERED": ("80", "OpenSandbox's `credentialProxy` was asked for; dibs has none"),
    "DELIVERY_MISMATCH": (
        "87",
        "the sandbox was not what was planned, and was ended; the remedy says whether its command had been started",
    ),
    "DEVICES_BUSY": ("83", "enough GPUs fit, but they are held; the holders are named"),
    "DEVICES_COLLIDE": ("80", "two devices want the same path in the sandbox"),
    "DEVICES_TAINTED": ("81", "enough GPUs fit, but people have tainted them; the taints are named"),
    "DEVICES_UNHEALTHY": ("84", "enough GPUs fit, but too many of them are broken"),
    "DEVICE_AMBIGUOUS": ("89", "several devices answer to that name; write one of those listed"),
    "DEVICE_CHANGED": ("80", "the device node is not what the CDI spec says; make the spec anew"),
    "DEVICE_GONE": ("80, 89", "a device node of the CDI spec does not exist, or has vanished since the plan"),
    "DEVICE_INVALID": ("80", "`device` is not the name of one device"),
    "DEVICE_NOT_ACCESSIBLE": ("81", "you may not open the device node; its group is named"),
    "DEVICE_NOT_FOUND": ("89", "there is no device of that name"),
    "DIAGNOSTICS_SCOPE_UNSUPPORTED": ("80", "the diagnostics have no such scope; those that there are are listed"),
    "DISK_FULL": ("91", "the ledger's disk is full; nothing was changed"),
    "DURATION_INVALID": ("80", "not a length of time such as `90s`, `10m`, `1h30m`"),
    "ENGINE_NOT_FOR_USERS": (
        "81",
        "the host service runs everything as its users, and an engine would run it as root",
    ),
    "ENTER_FAILED": ("86", "a running sandbox could not be entered"),
    "ENTRYPOINT_INVALID": ("80", "`entrypoint` is not a list of words"),
    "ENV_CONFLICT": ("80", "two sources set one variable to different values; one of them would be lost"),
    "ENV_INVALID": ("80", "a variable has no value, or its name or value is not allowed"),
    "ENV_RESERVED": ("80", "the variable is set by dibs from what was leased"),
    "EXPIRY_INVALID": ("80", "`expiresAt` is no time of RFC 3339, in the past, or too far away"),
    "FEATURE_GATE_UNKNOWN": ("80", "`--feature-gates` names a gate that is not known, or gives it no true or false"),
    "FIELD_NOT_SUPPORTED": (
        "80, 81",
        "this backend cannot deliver the field, see the delivery table (81); nothing can act on it (a claim's, 80)",
    ),
    "FILE_INVALID": ("80", "the request file cannot be read, is not one mapping, or has a key twice"),
    "FLAG_INVALID": ("80", "must be true or false"),
    "GATEWAY_INVALID": ("80", "this is not the address of a gateway"),
    "GATEWAY_UNREACHABLE": ("86", "the gateway does not answer, or what answers is none"),
    "GPU_AMBIGUOUS": ("80", "a spelling of another tool that could mean two things; both are offered"),
    "GPU_COUNT_INVALID": ("80", "the number of GPUs is not a whole number from 1 up"),
    "GPU_INVALID": ("80", "not a GPU request at all: empty, null, false"),
    "GPU_MEMORY_INVALID": ("80", "not a size or range of GPU memory"),
    "GPU_MODEL_INVALID": ("80", "this cannot be the name of a model"),
    "GPU_PROFILE_INVALID": ("80", "not the name of a MIG profile"),
    "GPU_SYNTAX": ("80", "the parts of the short form do not fit together"),
    "GPU_VENDOR_UNKNOWN": ("80", "the vendors are nvidia, amd and intel"),
    "HELPER_LOST": ("86", "the process that acts for a user of the host service failed"),
    "HOOK_FAILED": ("86", "a hook of the device's CDI spec failed; its words are in the reason"),
    "HOOK_NOT_FOUND": ("81", "a hook of the device's CDI spec is not installed"),
    "HOST_COMMAND_FAILED": (
        "86",
        "a command that sets the host service up failed; its words are the reason",
    ),
    "HOST_NOT_READY": ("86", "the host service was started and does not answer"),
    "HOST_RUNNING": ("88", "the host service still runs, and was not started by systemd; stop it first"),
    "HOST_SERVICE_DENIED": ("91", "this host has a service that you may not use; the group dibs may"),
    "HOST_SERVICE_SOCKET_ONLY": ("80", "the host service listens on its socket alone"),
    "HOST_IDENTITY_TAKEN": ("88", "another machine is registered under this host's identity on the same ledger"),
    "IDEMPOTENCY_KEY_INVALID": ("80", "an idempotency key is empty, too long or not printable"),
    "IDEMPOTENCY_KEY_REUSED": ("88", "an `Idempotency-Key` was used before, for another request; take a new one"),
    "IMAGE_AUTH_NOT_OFFERED": ("80", "`image.auth` was given; log the engine in to the registry instead"),
    "IMAGE_INVALID": ("80", "`image` cannot be the name of an image"),
    "IMAGE_NOT_ALLOWED": ("80", "an image that is a path of the gateway's host cannot be asked for by a remote caller"),
    "IMAGE_UNKNOWN": ("81", "the local backend has no image of that name"),
    "INPUT_CLOSED": ("88", "input was sent to a command that was started without input"),
    "INSTALLATION_PRIVATE": (
        "80",
        "ordinary users cannot read this installation, which the host service runs as them",
    ),
    "INTERNAL": ("99", "a defect in dibs; please report it"),
    "INVALID_DEVICE_SPEC": ("80", "the device's CDI spec says something that cannot be"),
    "INVALID_REQUEST": ("80", "the request is wrong; the field and the reason say how"),
    "LABELS_INVALID": ("80", "labels map short names to text"),
    "LEDGER_CORRUPT": (
        "91",
        "the ledger is damaged or not a ledger; see [the ledger](ledger.md#a-ledger-that-was-lost-restored-or-damaged)",
    ),
    "LEDGER_DRIVER_MISSING": ("91", "the driver for PostgreSQL is not installed; `pip install 'dibs[postgres]'`"),
    "LEDGER_IO_ERROR": ("91", "the ledger's disk failed; nothing was changed"),
    "LEDGER_LOCKED": ("83", "another process has kept the ledger locked for a minute"),
    "LEDGER_READ_ONLY": ("91", "the ledger cannot be written by you"),
    "LEDGER_INCOMPLETE": ("86", "sandboxes live that the ledger does not know; no device is booked until it does"),
    "LEDGER_ON_NETWORK": ("91", "the ledger's file is on a file system that other kernels may see"),
    "LEDGER_OTHER_KERNEL": ("88", "the ledger belongs to another kernel that may still run"),
    "LEDGER_TOO_NEW": ("91", "the ledger was made by a newer dibs"),
    "LEDGER_UNREACHABLE": ("86", "the database of the ledger does not answer; nothing is lost, try again when it does"),
    "LEDGER_UNUSABLE": ("91", "the ledger cannot be opened or used; the reason is the database's"),
    "LEDGER_URL_INVALID": ("91", "the URL of the ledger is not one of PostgreSQL"),
    "LIFECYCLE_NOT_OFFERED": ("80", "OpenSandbox's lifecycle hooks were asked for; dibs runs none"),
    "LIMIT_NOT_ENFORCEABLE": ("81", "this limit could not be enforced here, so the request is refused"),
    "LOG_DAMAGED": ("91", "the log of a sandbox is damaged"),
    "MAP_INVALID": ("80", "a map of names to texts of an OpenSandbox request is something else"),
    "METADATA_INVALID": ("80", "a key or value of `metadata` cannot be one"),
    "METADATA_RESERVED": ("80", "a key of `metadata` is one of OpenSandbox's own"),
    "MOUNT_INVALID": ("80", "not `SOURCE:TARGET[:rw]`, or the source does not exist"),
    "MOUNT_NOT_ALLOWED": (
        "80",
        "a request over a gateway wants a folder of the host that `mounts.allow` does not name",
    ),
    "MOUNT_SOURCE_MISSING": ("80", "a file that the CDI spec mounts does not exist; make the spec anew"),
    "NAME_INVALID": ("80", "a name is up to 63 lower-case letters, digits and `-`"),
    "NAME_TAKEN": ("88", "a live sandbox has that name"),
    "NETWORK_INVALID": ("80", "`network` is `host`, `none` or `private`"),
    "NETWORK_POLICY_INVALID": ("80", "`networkPolicy` has no meaning"),
    "NETWORK_POLICY_NOT_OFFERED": ("80", "a network policy with rules; dibs gives a private network or none"),
    "NODE_UNKNOWN": ("80", "`--node` names a node that is not in the files; those that are there are listed"),
    "NOT_FOUND": ("89", "there is no such sandbox, folder or file"),
    "NOT_HELD": ("88", "the sandbox was started already, or by another process"),
    "NOT_OVER_A_GATEWAY": ("81", "the verb is about this machine, and a gateway is in use"),
    "NOT_RUNNING": ("88", "the sandbox has ended or is paused"),
    "NOT_YOURS": (
        "88",
        "it belongs to another user of a shared ledger; only that user and root may touch it",
    ),
    "NO_CLAIM": ("80", "the files hold no claim to solve"),
    "NO_EXPIRY": ("88", "the end of a sandbox that has no time to live cannot be moved"),
    "NO_HOST_USER": (
        "80",
        "the caller of the host service is not a user of the host",
    ),
    "NO_MATCHING_DEVICE": ("82", "too few GPUs of this host fit; the nearest miss is named"),
    "NO_RECEIPT": ("89", "the sandbox has no receipt: nothing was delivered"),
    "OBSERVATION_FAILED": ("81, 86", "the sandbox could not be looked at: it is refused, or was ended"),
    "PARAMETER_INVALID": ("80", "a parameter in the query of a request to a gateway is wrong"),
    "PATCH_INVALID": ("80", "a runtimePatch of a TrainJob cannot be merged into its runtime; the place is named"),
    "PIDS_INVALID": ("80", "not a number of processes"),
    "PLATFORM_INVALID": ("80", "`platform` cannot be one, or is one that nothing here runs"),
    "POOLS_NOT_OFFERED": ("80", "OpenSandbox's pools were asked for; dibs has none"),
    "POOL_INVALID": ("80", "the published devices of a pool contradict each other"),
    "NETWORK_NOT_ALLOWED": (
        "80",
        "a request over a gateway wants the host's network, and `gateway.allow_host_network` is off",
    ),
    "NETWORK_UNAVAILABLE": ("81", "the backend cannot give a private network here; the reason says what is missing"),
    "GROUP_INVALID": ("80", "this cannot be asked of a group (`dibs run --nodes`)"),
    "GROUP_NOT_OVER_GATEWAY": ("81", "a group was asked for over a gateway, which makes single sandboxes only"),
    "PLACEMENT_REFUSED": ("82", "the scheduler of a cluster will never place the sandbox; its words are the reason"),
    "PORT_IN_USE": ("80", "a port of the host that is to be published is in use"),
    "PORT_NOT_ALLOWED": ("80", "you may not listen on a port of the host that is to be published"),
    "PUBLISH_INVALID": ("80", "`publish` is not `[ADDRESS:]PORT:PORT`, or the host has no such address"),
    "PUBLISH_NOT_ALLOWED": (
        "80",
        "a request over a gateway wants to publish a port, and `gateway.allow_publish` is off",
    ),
    "PORT_CLOSED": ("89", "nothing listens on this port of the sandbox"),
    "PORT_INVALID": ("80", "this is not the number of a port"),
    "PORT_UNREACHABLE": ("86", "the port of the sandbox does not answer"),
    "QUANTITY_INVALID": ("80", "not a quantity, or not one that makes sense here"),
    "QUOTA_EXCEEDED": ("85", "over what the tenant may hold at once"),
    "QUOTA_NEEDS_LIMIT": ("85", "the tenant has a quota on this, so the sandbox must say how much it may take"),
    "REQUEST_NOT_LIMIT": (
        "80",
        "`resourceRequests` and `resourceLimits` differ; dibs cannot reserve a part of a limit",
    ),
    "REQUEST_WITHOUT_LIMIT": ("80", "`resourceRequests` names what `resourceLimits` does not"),
    "ROOT_ARCHIVE_REFUSED": ("80", "the archive given as `root` is broken, or a member of it leads outside"),
    "ROOT_INVALID": ("80", "`root` is not an absolute path"),
    "ROOT_NEEDED": ("80", "only root can do this"),
    "ROOT_NOT_ALLOWED": ("80", "a root that is a path of the gateway's host cannot be asked for by a remote caller"),
    "SANDBOXES_RUNNING": ("88", "the host service is not taken away while sandboxes run"),
    "SANDBOX_SETUP_FAILED": ("86", "the sandbox could not be set up; bubblewrap's words are in the reason"),
    "SANDBOX_UNKNOWN": ("91", "what is written down of a live sandbox cannot be read"),
    "SANDBOX_STUCK": ("86", "a sandbox without a shim does not end: a process of it waits in the kernel"),
    "SCHEMA_NOT_FOUND": ("89", "no command of that name has an answer with a JSON schema; those that have are listed"),
    "SESSION_CLOSED": ("88", "the connection to the command is closed"),
    "SHIM_LOST": ("86", "the process that keeps the sandbox ended before the command was started"),
    "SHIM_STUCK": ("86", "the process that keeps the sandbox does not end; nothing of it was removed"),
    "SIMULATED_WORLD_UNUSABLE": ("91", "the file of the simulated world cannot be used; no device is offered"),
    "SNAPSHOT_IN_USE": ("88", "sandboxes are made of the snapshot; it cannot be removed"),
    "SNAPSHOT_INVALID": ("80", "`snapshotId` is not the id of a snapshot"),
    "SNAPSHOT_NOT_FOUND": ("89", "there is no snapshot of that id"),
    "SNAPSHOT_NOT_READY": ("88", "the snapshot is still being made, or was not made"),
    "SNAPSHOT_UNSUPPORTED": ("81", "the backend of this sandbox makes no snapshots"),
    "SOURCE_INVALID": ("80", "a sandbox is made from exactly one of `image` and `snapshotId`"),
    "STATE_FOLDER_UNSAFE": ("91", "the state folder, or a file in it, belongs to another user or can be written to"),
    "STATE_FOLDER_UNUSABLE": ("91", "the state folder cannot be made"),
    "STATE_UNUSABLE": ("91", "a state file cannot be read or written"),
    "STILL_CREATING": ("88", "the sandbox is still being created"),
    "STILL_RUNNING": ("88", "the files of a running sandbox cannot be removed; stop it first"),
    "SYSTEM_ERROR": ("99", "the operating system refused something unexpected; its words are the reason"),
    "TAINT_INVALID": ("80", "not a taint such as `maintenance`, `maintenance=fan` or `maintenance=fan:NoExecute`"),
    "TEMPLATES_NOT_OFFERED": ("80", "OpenSandbox's templates were asked for; dibs has none"),
    "TICKET_IN_USE": ("88", "this id of a place in the queue belongs to another request, or is in use already"),
    "TICKET_NOT_FOUND": ("89", "no request waits with this ticket"),
    "TICKET_REMOVED": ("88", "the place in the queue was removed while it was waited there"),
    "TIMEOUT": ("90", "waited as long as asked"),
    "TIMEOUT_INVALID": ("80", "`timeout` is no whole number of seconds, or longer than the gateway allows"),
    "TOKEN_INVALID": ("80", "this cannot be a token"),
    "TOKEN_NAME_TAKEN": ("88", "a token of that name is in use"),
    "TOKEN_NOT_FOUND": ("89", "there is no token of that name or id"),
    "TOKEN_UNREADABLE": ("91", "the file with the token cannot be read"),
    "TOO_MANY_CALLS": ("86", "one user has too many calls to the host service under way"),
    "TRAINJOB_INVALID": (
        "80",
        "a TrainJob, its runtime, or what both make together cannot be; every problem is named with its path",
    ),
    "TTL_TOO_LONG": ("80", "the gateway does not let a sandbox live that long"),
    "UNKNOWN_EXTENSION": (
        "80",
        "an extension of an OpenSandbox request that dibs does not know; the known ones are listed",
    ),
    "UNKNOWN_FIELD": ("80", "there is no such field; the known ones are listed"),
    "UNKNOWN_MODEL": ("80", "there is no such model to simulate; close ones or all are listed"),
    "UNKNOWN_PARAMETER": ("80", "a request to a gateway has an unknown parameter; the known ones are listed"),
    "UNKNOWN_RESOURCE": ("80", "dibs does not know this resource name"),
    "UNSUPPORTED": ("81", "right, but no backend here can deliver it"),
    "USER_INVALID": ("80", "this cannot be a user, or a user and a group"),
    "USER_NOT_MAPPED": ("80", "the sandbox has no such user; an ordinary user's sandbox has one, root's have all"),
    "VOLUME_INVALID": ("80", "a volume does not say what to mount where, or cannot be mounted as it is said"),
    "VOLUME_NOT_FOUND": ("80", "a named volume is missing, and was not to be created"),
    "VOLUME_NOT_OFFERED": ("80", "something of a volume of an OpenSandbox request that dibs does not do"),
    "VOLUME_UNSUPPORTED": ("80", "a named volume of a kind, or with a property, that this backend cannot prove"),
    "WAIT_TIMEOUT": ("90", "not served while waiting; the place in the queue is told"),
    "OPTION_FOR_ANOTHER_BACKEND": ("81", "an option that only another backend understands"),
    "WORKDIR_INVALID": ("80", "the working directory is not an absolute path of a folder"),
    "WORLD_IN_USE": ("88", "sandboxes hold simulated GPUs, so the simulated world cannot be changed now"),
    "WRONG_STATE": ("88", "the sandbox is not in a state that allows this"),
    "CDI_NAME_UNKNOWN": (
        "81",
        "the engine does not know the CDI device, and it cannot be passed in another way",
    ),
    "CDI_OFF": ("81", "Docker has no way to give GPUs; switch CDI on"),
    "CDI_SPECS_DIFFER": ("81", "the engine's CDI spec means other nodes by the name than the spec that dibs found"),
    "CDI_SPEC_UNUSABLE": ("81", "the engine cannot use the device's CDI spec; make it anew"),
    "CONTAINER_EXISTS": ("88", "the engine has a container of that name already"),
    "RUNTIME_DIED": ("86", "the runtime of the engine died before the command ran; try again"),
    "CONTAINER_BROKEN": ("86", "the engine was killed while it removed the container; removing it once more ends that"),
    "CONTAINER_GONE": ("89", "the container was removed behind dibs' back"),
    "DEVICE_RUNTIME_FAILED": ("81", "NVIDIA's own part of the engine failed; its words are the reason"),
    "ENGINE_BROKEN": ("86", "a part of the engine is missing or does not work here"),
    "ENGINE_DENIED": ("86", "you may not use the engine's socket"),
    "ENGINE_DISK_FULL": ("86", "the engine's disk is full"),
    "ENGINE_FAILED": ("86", "the engine failed; its words are the reason"),
    "ENGINE_LIMITED": ("86", "the engine may not set what it sets by default"),
    "ENGINE_NOT_RUNNING": ("86", "the engine is not installed or does not run; the remedy says how to start it"),
    "ENGINE_REFUSED": ("80, 88, 89", "the engine refused; its words are the reason"),
    "ENGINE_TOO_OLD": ("81", "the engine is too old for what is needed"),
    "ENGINE_UNREACHABLE": ("86", "the connection to the engine failed"),
    "IMAGE_NOT_FOUND": ("89", "neither the engine nor the registry has the image"),
    "LIMIT_INVALID": ("80", "the engine cannot set a limit of that size"),
    "PATH_UNSUITABLE": ("80", "the path in the sandbox is not a folder"),
    "PLATFORM_MISMATCH": ("81", "the image is made for another platform"),
    "READ_ONLY": ("88", "the sandbox's root is read-only"),
    "REGISTRY_DENIED": ("81", "the registry does not give the image to you"),
    "REGISTRY_UNREACHABLE": ("86", "the image is not here, and its registry cannot be reached"),
    "ROOTLESS_LIMITED": ("81", "a rootless engine has too few user ids, or no control groups"),
    "USER_UNKNOWN": ("80", "the image has no such user"),
    "BACKEND_OPTION_INVALID": ("80", "an option for one backend does not agree with the request; the reason says how"),
    "ADDRESS_IN_USE": ("88", "`dibs serve` cannot listen there; another process does, or it may not"),
    "ADMINISTRATOR_NEEDED": ("80", "only root may do this on a host with a service"),
    "BROWSER_REFUSED": ("80", "a web page called a gateway on loopback that needs no token (403)"),
    "BODY_TIMEOUT": ("80", "the body of a request did not come in time (408)"),
    "BODY_TOO_LARGE": ("80", "the body of a request is larger than the gateway takes (413)"),
    "COMMAND_TIMEOUT": ("90", "a command took longer than asked, and was killed"),
    "TIME_INVALID": ("80", "not a time: neither so long ago nor a date"),
    "FIELD_INVALID": ("80", "a field of a request has the wrong type or an impossible value; the reason says which"),
    "FIELD_MISSING": ("80", "a field of a request is needed and not there"),
    "FRAME_INVALID": ("80", "a frame of a conversation over a WebSocket cannot be read"),
    "GATEWAY_NOT_STARTED": ("91", "`dibs serve` could not start; its log says why"),
    "HEAD_TIMEOUT": ("80", "the headers of a request did not come in time (408)"),
    "HEAD_TOO_LARGE": ("80", "the headers of a request are larger than the gateway takes (431)"),
    "JSON_INVALID": ("80", "the body of a request is not JSON; the place is named"),
    "ALREADY_CONNECTED": ("88", "another client has the terminal; `takeover=1` takes it over"),
    "ANSWER_TOO_LARGE": ("99", "a listing, or the variables of a sandbox, are more than the gateway carries"),
    "COMMAND_TOO_LONG": ("80", "a command is longer than the kernel takes as one argument"),
    "CONTEXT_NOT_FOUND": ("89", "there is no such command, session or terminal in the sandbox"),
    "FILE_NOT_FOUND": ("89", "there is no such file or folder in the sandbox"),
    "INVALID_FILE": ("80", "the path is not what the call needs: a folder, a file, something that is not there yet"),
    "INVALID_FILE_METADATA": ("80", "the mode, the owner or the metadata of a file cannot be understood"),
    "INVALID_FRAME": ("80", "a terminal got a frame that it does not know"),
    "INVALID_REQUEST_BODY": ("80", "a request to a sandbox's own surface cannot be understood"),
    "MISSING_QUERY": ("80", "a part of the query is missing"),
    "NOT_SUPPORTED": ("99", "this part of execd's API is not served here, or the sandbox lacks the tools for it"),
    "PORT_BROKEN": ("86", "what listens on a port of the sandbox does not speak HTTP or WebSocket"),
    "RUNTIME_ERROR": ("99", "something failed inside of the sandbox, in the words of its tools"),
    "START_FAILED": ("99", "the shell of a terminal could not be started"),
    "TOO_MANY": ("88", "there are as many terminals as a gateway keeps"),
    "METHOD_NOT_ALLOWED": ("80", "the path of a request does not take this method (405)"),
    "NOT_HTTP": ("80", "what came is not valid HTTP"),
    "NO_LISTENER": ("80", "`dibs serve` was told to listen nowhere"),
    "OTEL_MISSING": ("80", "traces are configured, but the packages for them are not installed"),
    "PATH_INVALID": ("80", "a path of a file in a sandbox has a `..` in it"),
    "PATH_UNKNOWN": ("80", "the gateway has no such path (404)"),
    "QUERY_INVALID": ("80", "the query of a request cannot be read, or says a thing twice"),
    "REFUSED": ("80", "a gateway refused a request; the reason says why"),
    "REQUEST_INVALID": ("80", "a request cannot be understood as HTTP means it"),
    "SCOPE_INVALID": ("80", "there is no such scope for a token"),
    "SCOPE_MISSING": ("80", "the token does not have the scope that this needs (403)"),
    "SETTINGS_UNREADABLE": ("80", "the settings cannot be read, or are not TOML"),
    "SETTING_INVALID": ("80", "a setting has a value that cannot be; the reason says what it may be"),
    "SETTING_UNKNOWN": ("80", "there is no such setting; the known ones are listed"),
    "SOCKET_UNUSABLE": ("91", "the unix socket cannot be made; the reason is the system's"),
    "STOPPING": ("86", "the gateway is stopping; try another one, or again"),
    "TENANT_INVALID": ("80", "this cannot be the name of a tenant"),
    "TOKENS_NEEDED": ("80", "`dibs serve` would be reached from other hosts, and no token exists"),
    "TOKEN_EXPIRED": ("80", "the token has expired (401)"),
    "TOKEN_MISSING": ("80", "a request came without a token (401)"),
    "TOKEN_REVOKED": ("80", "the token was revoked (401)"),
    "TOKEN_UNKNOWN": ("80", "the token is not one of this ledger, or cannot be one (401)"),
    "TOO_MANY_CONNECTIONS": ("80", "the gateway has as many connections as it may, and none is silent (503)"),
    "TOO_MANY_STREAMS": ("80", "the tenant has as many copies and followed logs as it may (429)"),
    "UPLOAD_BROKEN": ("86", "an upload was broken off by its sender"),
    # OpenShell's API
    "GATEWAY_NOT_FOUND": ("89", "no gateway of yours has served OpenShell's SDK yet"),
    "URL_INVALID": ("80", "OpenShell's SDK takes http://HOST:PORT or https://HOST:PORT"),
    "AGENT_NOT_OFFERED": ("80", "OpenShell's `agent_socket` was asked for; no agent runs in a sandbox"),
    "ANNOTATION_INVALID": ("80", "annotations of an OpenShell request are too many, too long or not printable"),
    "ATTACHMENT_NOT_OFFERED": ("80", "OpenShell's `await_main_process_attachment` was asked for"),
    "CERTIFICATE_INVALID": ("80", "a client's certificate does not have one common name and one organization"),
    "CURSOR_INVALID": ("80", "OpenShell's `resume_after_cursor` is none that this gateway gave"),
    "DOMAIN_NOT_OFFERED": ("81", "OpenShell's `domain` was asked for; services have URLs, not host names"),
    "ENVIRONMENT_UNREADABLE": (
        "91",
        "the values that a later start needs cannot be read from the sandbox; it is not stopped",
    ),
    "FIELD_READ_ONLY": ("80", "a field of an OpenShell message that only the gateway sets"),
    "LABEL_INVALID": ("80", "a label is too long or not printable"),
    "LEVEL_INVALID": ("80", "there is no such log level"),
    "MESSAGE_INVALID": ("80", "a gRPC message is not the one that belongs there"),
    "NOT_STOPPED": (
        "88",
        "a sandbox ended by itself, so the values of its variables are gone and it cannot be started again",
    ),
    "NO_HTTP_ADDRESS": ("81", "a port cannot be exposed: the gateway has no HTTP address"),
    "OIDC_KEYS_UNREADABLE": ("86", "the keys of the OIDC issuer cannot be read"),
    "OPENSHELL_MISSING": ("80", "`dibs serve --openshell` needs the extra `dibs[openshell]`"),
    "PAGE_INVALID": ("80", "a page token or page size is not valid"),
    "PASSTHROUGH_NOT_OFFERED": ("80", "a gateway's tokens are not handed to a sandbox"),
    "POLICY_NOT_OFFERED": ("80", "an OpenShell policy was sent; dibs enforces none"),
    "PROVIDERS_NOT_OFFERED": ("80", "OpenShell providers were asked for; dibs hands out no credentials"),
    "REQUEST_ID_INVALID": ("80", "OpenShell's `request_id` is too long or not printable"),
    "REQUEST_ID_USED": ("88", "a command with this `request_id` was started already; it is not started again"),
    "OUTCOME_UNKNOWN": ("88", "a call with this `request_id` was begun, and how it ended is not known; look first"),
    "DRIVER_CONFIG_INVALID": ("80", "a block of OpenShell's `driver_config` has a value that its driver does not take"),
    "MOUNTS_NOT_OFFERED": ("80", "OpenShell's `driver_config` asks for a mount; its clients get no folder of the host"),
    "UNKNOWN_DRIVER": (
        "80",
        "OpenShell's `driver_config` has a block for a driver that there is not; the known ones are named",
    ),
    "VM_NOT_OFFERED": ("80", "OpenShell's `driver_config` has keys for a VM, and there is no VM backend"),
    "VOLUMES_NOT_OFFERED": ("80", "OpenShell's `driver_config` asks for a volume of a cluster"),
    "LINES_INVALID": ("80", "more lines of a log than one answer holds"),
    "RESOURCES_INVALID": ("80", "`template.resources` is not an object of names and amounts"),
    "RESTART_NOT_OFFERED": ("80", "an OpenShell restart policy was asked for; dibs restarts no command"),
    "RUNTIME_CLASS_NOT_OFFERED": ("80", "a runtime class was asked for where there is no cluster"),
    "SELECTOR_INVALID": ("80", "a label selector cannot be read"),
    "NAMESPACE_FORBIDDEN": ("80", "the token is not for this namespace: a namespace is a tenant"),
    "NAMESPACE_MISMATCH": ("80", "an object names another namespace than the path that it was sent to"),
    "KIND_INVALID": ("80", "an object is of another kind than the path that it was sent to"),
    "MEDIA_TYPE_UNKNOWN": ("80", "a body or patch was sent in a form that is not read here"),
    "WATCH_EXPIRED": ("80", "a watch or list cannot go on from there: ask for the list again"),
    "WATCH_UNSUPPORTED": ("80", "a watch that begins with a list is not served"),
    "MODIFIED": ("88", "the object was changed since it was read"),
    "PRECONDITION_FAILED": ("88", "the object is not the one that a deletion was meant for"),
    "RUNTIME_SHIPPED": ("88", "a runtime that comes with dibs cannot be changed"),
    "FILE_EXISTS": ("88", "a file holds something else, and would be replaced"),
    "SERVICE_NOT_FOUND": ("89", "there is no such service of the sandbox"),
    "SIZE_INVALID": ("80", "the size of a window is not from 1 to 10000"),
    "TEMPLATE_NOT_FOUND": ("89", "there is no such workload template in the workspace"),
    "TEMPLATE_TOO_LARGE": ("80", "a workload template is too large"),
    "TENANT_MISSING": ("80", "an OIDC token names no tenant"),
    "UNKNOWN_ANNOTATION": ("80", "an annotation below `dibs.` that dibs does not know"),
    "USER_NAMESPACE_NOT_OFFERED": ("80", "OpenShell's `user_namespaces` cannot be chosen"),
    "WORKSPACE_MISSING": ("80", "an OpenShell request must name one workspace"),
    "WORKSPACE_NOT_EMPTY": ("88", "a workspace with sandboxes in it is not deleted"),
    "WORKSPACE_NOT_FOUND": ("89", "there is no such workspace, or it is another tenant's"),
    "WORKSPACE_PERMANENT": ("88", "`default`, and a tenant of the settings or of a token, cannot be deleted"),
    "ADMISSION_DENIED": ("80", "an admission plugin or webhook of a cluster refused an object; its words are given"),
    "CLAIM_NOT_ALLOCATED": ("88", "a kubelet asks for a claim that the scheduler has not allocated, or not any more"),
    "CLAIM_REPLACED": ("88", "a kubelet asks for a claim whose name another one has now"),
    "CONFIG_UNSUPPORTED": ("80", "a claim or class has parameters for `dibs node`, which knows none"),
    "DRIVER_CONFLICT": ("88", "something else on this node offers the same devices, or a driver of the same name"),
    "KUBELET_UNAVAILABLE": ("86", "the kubelet does not register the device plugin; it is tried again"),
    "NODE_EXTRA_MISSING": ("81", "`dibs node` needs packages that are not installed; the remedy names the extra"),
    "NODE_STATE_INVALID": ("91", "a file or folder of `dibs node` below /var/lib/kubelet cannot be used"),
    "CLUSTER_CONFLICT": ("88", "an object of a cluster was changed meanwhile; read it again"),
    "CLUSTER_EXISTS": ("88", "an object of that name is in the cluster already"),
    "CLUSTER_EXPIRED": ("88", "a list or watch of a cluster is too old to go on; start it again"),
    "CLUSTER_FORBIDDEN": ("86", "RBAC of a cluster forbids it; verb, resource and the role to add are named"),
    "CLUSTER_NOT_FOUND": ("89", "there is no such object, or no such kind of object, in the cluster"),
    "CLUSTER_OVERLOADED": ("86", "a cluster's API server asked for fewer requests, and went on doing so"),
    "CLUSTER_QUOTA_EXCEEDED": ("85", "a ResourceQuota of the namespace does not allow it"),
    "CLUSTER_REJECTED": ("80", "a cluster's API server refused an object; each field is named"),
    "CLUSTER_TOO_OLD": ("81", "the cluster is older than Kubernetes 1.34 and has no resource.k8s.io/v1"),
    "CLUSTER_UNAUTHORIZED": ("86", "a cluster does not take the credentials: they are expired or wrong"),
    "CLUSTER_UNKNOWN": ("80, 89", "there is no such context in the kubeconfig, or no current one"),
    "CLUSTER_UNREACHABLE": ("86", "a cluster's API server cannot be reached, or what answers is none"),
    "CREDENTIAL_PLUGIN_FAILED": (
        "86",
        "the exec plugin of a kubeconfig gave no credential; usually a new login is needed",
    ),
    "KUBECONFIG_MISSING": ("89", "there is no kubeconfig, and dibs does not run in a pod"),
    "KUBECONFIG_UNREADABLE": ("80, 91", "a kubeconfig, or a file that it names, cannot be read or understood"),
    "KUBECONFIG_UNSUPPORTED": ("80", "a kubeconfig asks for something that dibs does not do, such as a proxy"),
    "NAMESPACE_TERMINATING": ("88", "the namespace is being deleted"),
}

# The part of dibs that a line of the catalogue waits for, where it has no test yet.
TO_COME = {"SD-14": "VM backend", "SD-15": "VM backend"}

_Function = ast.FunctionDef | None
_CODE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
_AREAS = {
    "backends": "backend", "cdi": "CDI", "claims": "claims", "cli": "command line", "devices": "devices",
    "errors": "everywhere", "home": "state folder", "ledger": "ledger", "plan": "plan", "request": "request",
    "sdk": "Python", "train": "training jobs", "workloads": "sandboxes",
}  # fmt: skip


# --- problem codes


def codes_in(source: Path) -> dict[str, set[str]]:
    """Every problem code in the source, and the parts of dibs that use it."""
    found: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        part = path.relative_to(source).parts[0].removesuffix(".py")
        for code in _codes_of(ast.parse(path.read_text())):
            found.setdefault(code, set()).add(_AREAS.get(part, part))
    return found


def _codes_of(tree: ast.Module) -> Iterator[str]:
    for function, node in _with_functions(tree):
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["default_code"]:
            yield from _values(node.value, function, tree)
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("Problem", "problem", "_problem", "refuse") and len(node.args) > 1:
            yield from _values(node.args[0], function, tree)
        for keyword in node.keywords:
            if keyword.arg == "code":
                yield from _values(keyword.value, function, tree)


def _with_functions(tree: ast.AST, function: _Function = None) -> Iterator[tuple[_Function, ast.AST]]:
    """Every node, with the function that it is in."""
    for node in ast.iter_child_nodes(tree):
        yield function, node
        yield from _with_functions(node, node if isinstance(node, ast.FunctionDef) else function)


def _values(node: ast.expr, function: _Function, tree: ast.Module) -> Iterator[str]:
    """What an expression in the place of a code can be."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and _CODE.fullmatch(node.value):
            yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _values(node.body, function, tree)
        yield from _values(node.orelse, function, tree)
    elif isinstance(node, ast.JoinedStr):
        # f"{field.upper()}_INVALID": the field is the first argument of the calls of the function.
        tail = node.values[-1]
        suffix = str(tail.value) if isinstance(tail, ast.Constant) else ""
        name = function.name if function is not None else ""
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", getattr(call.func, "id", "")) == name:
                first = call.args[0] if call.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield f"{first.value.upper()}{suffix}"
    elif isinstance(node, ast.Name) and not _is_parameter(node.id, function):
        # A variable: every tuple of the module that has a code among texts, and every assignment to that name.
        for other in ast.walk(tree):
            if isinstance(other, ast.Tuple) and len(other.elts) > 2:
                for item in other.elts:
                    if isinstance(item, ast.Constant) and isinstance(item.value, str) and "_" in item.value:
                        yield from _values(item, function, tree)
            elif (
                isinstance(other, ast.Assign)
                and any(isinstance(target, ast.Name) and target.id == node.id for target in other.targets)
                and not isinstance(other.value, ast.Name)
            ):
                yield from _values(other.value, function, tree)


def _is_parameter(name: str, function: _Function) -> bool:
    """Then the code comes from the callers, who are seen themselves."""
    arguments = function.args if function is not None else None
    return arguments is not None and name in [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]


def codes_table() -> str:
    from dibs.backends.engines.errors import TABLES
    from dibs.request.fields import FIELDS

    found = codes_in(SOURCE)
    for row in (row for rows in TABLES.values() for row in rows):  # what engines say is mapped by tables
        found.setdefault(row.code, set()).add("backend")
    meanings = dict(MEANINGS)
    for field in FIELDS:
        if field.kind in ("words", "text", "choice", "path"):  # their codes are made from their names
            code = f"{field.name.upper()}_INVALID"
            found.setdefault(code, set()).add(_AREAS["request"])
            meanings.setdefault(code, ("80", f"this cannot be the value of `{field.name}`"))
    new = sorted(set(found) - set(meanings))
    if new:
        raise SystemExit("\n".join(f"{code}: add a line to MEANINGS in scripts/generate_docs.py" for code in new))
    lines = ["| code | exit | meaning | where |", "|---|---|---|---|"]
    for code in sorted(found):
        number, meaning = meanings[code]
        lines.append(f"| `{code}` | {number} | {meaning} | {', '.join(sorted(found[code]))} |")
    return "\n".join(lines)


# --- the delivery table


def delivery_page() -> str:
    from dibs.backends.installed import built_in
    from dibs.plan.delivery import cell
    from dibs.request.fields import ROWS

    backends = [one.name for one in built_in()]

    lines = [
        "# The delivery table",
        "",
        "What happens to each field of a request on each backend. This page is written from the table in the code",
        "(each backend's `declaration`); `dibs table` prints the same. There are three outcomes and no fourth:",
        "",
        "- **delivered**: the workload has it. On `local` it was seen in the sandbox before the command started, on",
        "  [engines](engines.md) just before or right after; the cell says what the engine's word is taken for.",
        "- **delegated**: it was handed to a scheduler that owns it, and is followed until it is decided.",
        "- **refused**: nothing was created, and you were told why.",
        "",
        "*Where it can* means: only if this host can enforce it. dibs tries, and refuses the field otherwise",
        "(`LIMIT_NOT_ENFORCEABLE`). `fake` is a backend in memory for tests; `auto` never takes it.",
        "",
        f"| field | {' | '.join(f'`{backend}`' for backend in backends)} |",
        f"|---|{'---|' * len(backends)}",
    ]
    for field in ROWS:
        cells = []
        for backend in backends:
            entry = cell(field, backend)
            where = " where it can" if entry.probe else ""
            cells.append(f"**{entry.outcome.value}**{where}: {entry.how}")
        lines.append(f"| `{field}` | {' | '.join(cells)} |")
    lines += ["", "How to write each field: [requests](requests.md). Back to the [contents](index.md).", ""]
    return "\n".join(lines)


# --- the fields of a request


def fields_table() -> str:
    from dibs.request.fields import FIELDS

    lines = ["| field | option | meaning |", "|---|---|---|"]
    for field in FIELDS:
        spelled = ", ".join(f"`{word}`" for word in field.option)
        if field.metavar and spelled:
            value = field.metavar.replace("|", "\\|")
            spelled = f"{spelled[:-1]} {value}`"
        lines.append(f"| `{field.name}` | {spelled or '–'} | {field.about} |")
    return "\n".join(lines)


# --- the catalogue's tests


def drop_tests() -> dict[str, list[tuple[str, str]]]:
    """SD-07 -> its tests, as (name, file)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, ids in re.findall(r"^(?:async )?def (test_((?:sd_\d+_)+)\w+)", path.read_text(), re.MULTILINE):
            for number in re.findall(r"\d+", ids):
                found.setdefault(f"SD-{number}", []).append((name, path.relative_to(ROOT).as_posix()))
    return found


def drops_table() -> str:
    tests = drop_tests()
    page = (DOCS / "silent-drops.md").read_text()
    lines = ["| id | proved by |", "|---|---|"]
    for drop in re.findall(r"^\| (SD-\d+) \|", page.partition("<!-- generated: tests -->")[0], re.MULTILINE):
        if drop in tests:
            proof = "<br>".join(f"`{name}` in [{path}](../{path})" for name, path in tests[drop])
        elif drop in TO_COME:
            proof = f"planned, with the {TO_COME[drop]}"
        else:
            raise SystemExit(f"{drop}: has no test, and TO_COME does not say what it waits for")
        lines.append(f"| {drop} | {proof} |")
    return "\n".join(lines)


# --- writing


def between(page: Path, name: str, content: str) -> str:
    """The text of a page with what stands between two markers replaced."""
    start, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    text = page.read_text()
    if text.count(start) != 1 or text.count(end) != 1:
        raise SystemExit(f"{page}: the markers {start} and {end} must be there once")
    head, _, rest = text.partition(start)
    return f"{head}{start}\n{content}\n{end}{rest.partition(end)[2]}"


def generated() -> dict[Path, str]:
    exits, drops, requests = DOCS / "exit-codes.md", DOCS / "silent-drops.md", DOCS / "requests.md"
    return {
        DOCS / "delivery-table.md": delivery_page(),
        exits: between(exits, "codes", codes_table()),
        drops: between(drops, "tests", drops_table()),
        requests: between(requests, "fields", fields_table()),
    }


def write_outputs(only: list[str]) -> None:
    """Run the pages, and put the real output where a page shows another one."""
    sys.path.insert(0, str(ROOT / "tests" / "docs"))
    import pages  # type: ignore[import-not-found]  # it is not in a package

    for page in pages.PAGES:
        if only and page.name not in only:
            continue
        with tempfile.TemporaryDirectory(prefix="dibs-docs-") as folder:
            runner = pages.Runner(Path(folder), limits=pages.can_limit())
            lines = page.read_text().splitlines()
            moved = 0
            for block, step, outcome in pages.walk(page, runner):
                if step is None:
                    if outcome.code:
                        sys.stderr.write(
                            f"{page.name}:{block.line}: the Python failed\n" + "\n".join(outcome.output) + "\n"
                        )
                    continue
                if outcome.code != step.code:
                    sys.stderr.write(f"{page.name}:{step.line}: exit code {outcome.code}: {step.command}\n")
                    sys.stderr.write("\n".join(outcome.output) + "\n")
                if step.output and not pages.matches(step.output, outcome.output):
                    sys.stderr.write(f"{page.name}:{step.line}: written anew: {step.command}\n")
                    lines[step.first - 1 + moved : step.last - 1 + moved] = outcome.output
                    moved += len(outcome.output) - len(step.output)
            left = runner.left()
            if left:
                sys.stderr.write(f"{page.name}: leaves {', '.join(left)} running\n")
        page.write_text("\n".join(lines) + "\n")


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    stale = [path for path, text in generated().items() if not path.exists() or path.read_text() != text]
    if check:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current; run: make docs\n")
        return 1 if stale else 0
    for path, text in generated().items():
        path.write_text(text)
    if "--outputs" in arguments:
        write_outputs([word for word in arguments if not word.startswith("-")])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
