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
