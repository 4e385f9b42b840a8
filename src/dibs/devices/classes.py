"""The device classes that are known here: the built-in ones, and those in the files of the configuration folder.

`plan` and `dibs claims solve` ask. A class is a name for "what must hold for a device to be of this kind". The built-in
ones use nothing that Kubernetes has switched off, and hold for any device without failing: an attribute that a device
does not have is no error. A file cannot redefine a built-in class, since `--gpu 1` means one of these.
"""

from __future__ import annotations

import os
from functools import lru_cache

from dibs.claims.claim import CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector
from dibs.claims.meta import ObjectMeta
from dibs.errors import InvalidRequest, Problem
from dibs.home import Home

# A driver may leave the type out (as Kubernetes' example driver does): its own name then says whether these are GPUs.
_TYPE = 'device.attributes[device.driver].?type.orValue(device.driver.startsWith("gpu.") ? "gpu" : "")'
_WHOLE = f'{_TYPE} == "gpu"'
_PART = f'{_TYPE} == "mig"'

BUILT_IN: dict[str, tuple[str, ...]] = {
    "gpu": (_WHOLE,),
    "gpu.nvidia.com": ('device.driver == "gpu.nvidia.com"', _WHOLE),
    "gpu.amd.com": ('device.driver == "gpu.amd.com"', _WHOLE),
    "gpu.intel.com": ('device.driver == "gpu.intel.com"', _WHOLE),
    "mig.nvidia.com": ('device.driver == "gpu.nvidia.com"', _PART),
    "part": (_PART,),
    "gpu-or-part": (f'{_TYPE} in ["gpu", "mig"]',),
    "simulated": ('device.attributes["sim.dibs"].?simulated.orValue(false) == true',),
}


@lru_cache(maxsize=1)
def built_in() -> tuple[DeviceClass, ...]:
    return tuple(
        DeviceClass(
            metadata=ObjectMeta(name=name),
            spec=DeviceClassSpec(
                selectors=tuple(DeviceSelector(cel=CELDeviceSelector(expression=text)) for text in expressions)
            ),
        )
        for name, expressions in BUILT_IN.items()
    )


def classes_of(home: Home) -> list[DeviceClass]:
    """All classes. InvalidRequest with every problem of every file, each with the file and the field."""
    folder = home.config / "classes"
    try:
        with os.scandir(folder) as entries:
            # A pipe would wait for ever; a link that leads nowhere is an error that reading it will tell.
            names = sorted(e.name for e in entries if e.name.endswith(".yaml") and (e.is_file() or e.is_symlink()))
    except FileNotFoundError:
        return list(built_in())
    except OSError as error:
        raise InvalidRequest(
            f"the folder of device classes cannot be read: {error.strerror}",
            field="classes",
            value=str(folder),
            code="CLASS_FILE_INVALID",
            remedy="make it readable, or remove it",
        ) from error
    if not names:
        return list(built_in())
    return [*built_in(), *_read([str(folder / name) for name in names])]


def _read(paths: list[str]) -> list[DeviceClass]:
    from dibs.devices.manifests import read_manifests

    found = read_manifests(paths)
    problems = [problem.problem("CLASS_FILE_INVALID") for problem in found.problems]
    classes: list[DeviceClass] = []
    for manifest in found.manifests:
        if not isinstance(manifest.object, DeviceClass):
            reason = "only device classes can stand here"
            problems.append(Problem("CLASS_FILE_INVALID", f"{manifest.file}: kind", manifest.kind, reason))
        elif manifest.object.metadata.name in BUILT_IN:
            where, name = f"{manifest.file}: metadata.name", manifest.object.metadata.name
            remedy = f"give it another name; the built-in ones are {', '.join(BUILT_IN)}"
            problems.append(Problem("CLASS_FILE_INVALID", where, name, "this class is built in", remedy))
        else:
            classes.append(manifest.object)
    if problems:
        raise InvalidRequest(problems)
    return classes
