"""CRI container annotations that ask for CDI devices: `cdi.k8s.io/<plugin>_<device id>: name,name`.

For container runtimes that take devices from annotations. Pure: a given mapping is
never changed; a new one is returned.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Final

from dibs.cdi.errors import AnnotationError, InvalidNameError, quoted
from dibs.cdi.names import CdiName, parse_qualified_name

ANNOTATION_PREFIX: Final = "cdi.k8s.io/"
_MAX_NAME: Final = 63
_ALNUM: Final = frozenset(string.ascii_letters + string.digits)
_INNER: Final = _ALNUM | frozenset("_-.")


def annotation_key(plugin: str, device_id: str) -> str:
    """The key for one allocation by a plugin. By habit a plugin is named `vendor.class`."""
    if not plugin:
        raise AnnotationError("invalid annotation key: the plugin name is empty")
    if not device_id:
        raise AnnotationError("invalid annotation key: the device id is empty")
    name = f"{plugin}_{device_id.replace('/', '_')}"
    if len(name) > _MAX_NAME:
        raise AnnotationError(
            f"invalid annotation key {quoted(name)}: {len(name)} characters, at most {_MAX_NAME} are allowed"
        )
    if name[0] not in _ALNUM or name[-1] not in _ALNUM:
        raise AnnotationError(f"invalid annotation key {quoted(name)}: must start and end with a letter or digit")
    for char in name:
        if char not in _INNER:
            raise AnnotationError(
                f'invalid annotation key {quoted(name)}: the character {quoted(char)} is not a letter, digit or "_-."'
            )
    return ANNOTATION_PREFIX + name


def annotation_value(devices: Sequence[str]) -> str:
    """The value that asks for these devices. Each must be a qualified name."""
    if not devices:
        raise AnnotationError("invalid annotation value: no devices are given")
    _checked(devices, "annotation value")
    return ",".join(devices)


def update_annotations(
    annotations: Mapping[str, str] | None, plugin: str, device_id: str, devices: Sequence[str]
) -> dict[str, str]:
    """Return the annotations with one more request. A key that is in use already is an error."""
    key = annotation_key(plugin, device_id)
    result = dict(annotations or {})
    if key in result:
        raise AnnotationError(f"annotation key {quoted(key)} is in use already; choose another device id")
    result[key] = annotation_value(devices)
    return result


def parse_annotations(annotations: Mapping[str, str] | None) -> tuple[list[str], list[CdiName]]:
    """Return (keys, devices) of every CDI request, by key. One malformed name fails the whole."""
    keys = sorted(key for key in annotations or {} if key.startswith(ANNOTATION_PREFIX))
    devices: list[CdiName] = []
    bad: list[str] = []
    for key in keys:
        try:
            devices += _checked((annotations or {})[key].split(","), f"annotation {quoted(key)}")
        except AnnotationError as exc:
            bad.append(str(exc))
    if bad:
        raise AnnotationError("; ".join(bad))
    return keys, devices


def _checked(devices: Sequence[str], what: str) -> list[CdiName]:
    bad: list[str] = []
    for device in devices:
        try:
            parse_qualified_name(device)
        except InvalidNameError as exc:
            bad.append(str(exc))
    if bad:
        raise AnnotationError(f"{what}: {'; '.join(bad)}")
    return [CdiName(device) for device in devices]
