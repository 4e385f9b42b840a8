"""The Container Device Interface: turning a device name such as `nvidia.com/gpu=0` into container edits.

A library of its own; it needs nothing else of dibs.

    cache = Cache()                                     # /etc/cdi, then /var/run/cdi, which wins
    cache.devices()                                     # ['nvidia.com/gpu=0', ...]
    cache.resolve(["nvidia.com/gpu=0"]).merged          # what has to change in a container
    cache.inject(oci_spec, ["nvidia.com/gpu=0"])        # a new OCI spec, or an error and no change
    cache.errors()                                      # what is wrong with files that could not be used
    cache.refresh()                                     # look again; cheap when nothing changed

Modules: `names`, `spec` (types), `decode` (strict reading), `validate`, `version`, `edits` (merging), `inject`,
`store` (writing), `cache`, `annotations`, `watch`, `errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.cdi.annotations import (
        ANNOTATION_PREFIX,
        annotation_key,
        annotation_value,
        parse_annotations,
        update_annotations,
    )
    from dibs.cdi.cache import DEFAULT_SPEC_DIRS, Cache, CachedDevice, EditsPart, Resolution, SpecFile
    from dibs.cdi.decode import encode_json, encode_yaml, parse_spec, read_spec
    from dibs.cdi.edits import merge_edits
    from dibs.cdi.errors import (
        AnnotationError,
        CdiError,
        InjectError,
        InvalidNameError,
        Problem,
        SpecError,
        StoreError,
        UnresolvableError,
    )
    from dibs.cdi.inject import OciSpec, apply_edits, fill_device_node, fill_device_nodes, take_device_references
    from dibs.cdi.names import (
        CdiName,
        is_qualified_name,
        parse_device,
        parse_kind,
        parse_qualified_name,
        qualified_name,
    )
    from dibs.cdi.spec import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec
    from dibs.cdi.store import spec_name, transient_spec_name
    from dibs.cdi.validate import device_problems, edits_problems, spec_problems
    from dibs.cdi.version import CURRENT_VERSION, EARLIEST_VERSION, KNOWN_VERSIONS, minimum_required_version
    from dibs.cdi.watch import Change, Snapshot, watch_specs

_NAMES = {
    "annotations": (
        "ANNOTATION_PREFIX",
        "annotation_key",
        "annotation_value",
        "parse_annotations",
        "update_annotations",
    ),
    "cache": (
        "DEFAULT_SPEC_DIRS",
        "Cache",
        "CachedDevice",
        "EditsPart",
        "Resolution",
        "SpecFile",
    ),
    "decode": (
        "encode_json",
        "encode_yaml",
        "parse_spec",
        "read_spec",
    ),
    "edits": ("merge_edits",),
    "errors": (
        "AnnotationError",
        "CdiError",
        "InjectError",
        "InvalidNameError",
        "Problem",
        "SpecError",
        "StoreError",
        "UnresolvableError",
    ),
    "inject": (
        "OciSpec",
        "apply_edits",
        "fill_device_node",
        "fill_device_nodes",
        "take_device_references",
    ),
    "names": (
        "CdiName",
        "is_qualified_name",
        "parse_device",
        "parse_kind",
        "parse_qualified_name",
        "qualified_name",
    ),
    "spec": (
        "ContainerEdits",
        "Device",
        "DeviceNode",
        "Hook",
        "IntelRdt",
        "Mount",
        "NetDevice",
        "Spec",
    ),
    "store": (
        "spec_name",
        "transient_spec_name",
    ),
    "validate": (
        "device_problems",
        "edits_problems",
        "spec_problems",
    ),
    "version": (
        "CURRENT_VERSION",
        "EARLIEST_VERSION",
        "KNOWN_VERSIONS",
        "minimum_required_version",
    ),
    "watch": (
        "Change",
        "Snapshot",
        "watch_specs",
    ),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "ANNOTATION_PREFIX",
    "CURRENT_VERSION",
    "DEFAULT_SPEC_DIRS",
    "EARLIEST_VERSION",
    "KNOWN_VERSIONS",
    "AnnotationError",
    "Cache",
    "CachedDevice",
    "CdiError",
    "CdiName",
    "Change",
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "EditsPart",
    "Hook",
    "InjectError",
    "IntelRdt",
    "InvalidNameError",
    "Mount",
    "NetDevice",
    "OciSpec",
    "Problem",
    "Resolution",
    "Snapshot",
    "Spec",
    "SpecError",
    "SpecFile",
    "StoreError",
    "UnresolvableError",
    "annotation_key",
    "annotation_value",
    "apply_edits",
    "device_problems",
    "edits_problems",
    "encode_json",
    "encode_yaml",
    "fill_device_node",
    "fill_device_nodes",
    "is_qualified_name",
    "merge_edits",
    "minimum_required_version",
    "parse_annotations",
    "parse_device",
    "parse_kind",
    "parse_qualified_name",
    "parse_spec",
    "qualified_name",
    "read_spec",
    "spec_name",
    "spec_problems",
    "take_device_references",
    "transient_spec_name",
    "update_annotations",
    "watch_specs",
]


if not TYPE_CHECKING:  # who looks for a name that is not there must hear it from the type checker too

    def __getattr__(name: str) -> Any:
        """A name is loaded with its module when it is first asked for: most users need the types alone."""
        module = _HOME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{module}"), name)
