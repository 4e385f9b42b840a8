"""Writes the Python source that type checkers need of the table of fields (`dibs.request.fields`).

    python scripts/generate_fields.py            writes the files
    python scripts/generate_fields.py --check    says which of them are not current

`make docs` runs it; tests/request/test_table_of_fields.py checks it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dibs.request.fields import FIELDS, Field

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "src" / "dibs" / "request" / "sandbox_spec.py"
SDK = ROOT / "src" / "dibs" / "sdk" / "fields.py"

SPEC_HEAD = '''"""A valid request as typed values.

Written by scripts/generate_fields.py from `request.fields`: edit that instead. `request.spec` fills it, the
ledger keeps it, and `backends.port.Workload` has the same passed fields.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dibs.request.model import MountSpec, PublishedPort, Request, VolumeSpec


class PassedFields(msgspec.Struct, frozen=True, kw_only=True):
    """What reaches a backend as it was asked for."""

'''
SPEC_REST = '''

class SandboxSpec(PassedFields, frozen=True, kw_only=True, omit_defaults=True):
    """A valid request. No device is chosen yet."""

    resources: Request = Request()
'''
SPEC_END = """    # By backend, what only that one understands.
    options: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    # A folder of this host that comes along unasked: mounted, and the working directory, where folders can be seen.
    brought: str = ""
"""
SDK_HEAD = '''"""The keyword arguments of the Python API, typed.

Written by scripts/generate_fields.py from `request.fields`: edit that instead. `sandbox` and `aio` unpack
them, so that a type checker and an editor know every name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Command = str | Sequence[str]
Gpu = bool | int | str | Mapping[str, Any]
Amount = int | float | str
Duration = int | float | str


class RequestFields(TypedDict, total=False):
    """What a sandbox can be asked for; docs/requests.md describes each field."""

'''
SDK_END = '''

class SandboxFields(RequestFields, total=False):
    """A sandbox also takes its main command."""

    command: Command
'''


def attribute(field: Field) -> str:
    return f"    {field.attribute}: {field.python} = {field.default}\n"


def keyword(field: Field) -> str:
    said = field.note or field.about
    line = f"    {field.name}: {field.sdk}  # {said}\n"
    return line if len(line) <= 121 else f"    # {said}\n    {field.name}: {field.sdk}\n"


def generated() -> dict[Path, str]:
    own = [field for field in FIELDS if field.kind not in ("resource", "options")]
    spec = SPEC_HEAD + "".join(attribute(field) for field in own if field.passed)
    spec += SPEC_REST + "".join(attribute(field) for field in own if not field.passed) + SPEC_END
    sdk = SDK_HEAD + "".join(keyword(field) for field in FIELDS if field.name != "command") + SDK_END
    return {SPEC: spec, SDK: sdk}


def main(arguments: list[str]) -> int:
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text() != text}
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current; run: make docs\n")
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
