"""A patient: a home and a host in a temporary folder, with whatever a test puts there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dibs.cdi.cache import Cache
from dibs.devices.host import Roots
from dibs.devices.model import Device, Inventory, SourceError
from dibs.doctor import Finding, Scene
from dibs.home import Home


class Patient:
    def __init__(self, root: Path) -> None:
        for name in ("dev", "proc", "sys", "etc", "cdi", "state"):
            (root / name).mkdir()
        self.root = root
        self.roots = Roots(*(str(root / name) for name in ("dev", "proc", "sys", "etc")))
        self.home = Home(state=root / "state", config=root / "config")
        self.specs = root / "cdi"

    def file(self, path: str, text: str = "") -> Path:
        place = Path(self.roots.file(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def node(self, path: str, like: str = "/dev/null") -> None:
        """A node with the numbers of another one: a link, since making nodes takes root."""
        place = Path(self.roots.node(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(like)

    def spec(self, edits: dict[str, Any], name: str = "nvidia.json", kind: str = "nvidia.com/gpu") -> Path:
        path = self.specs / name
        document = {"cdiVersion": "0.6.0", "kind": kind, "devices": [{"name": "0", "containerEdits": edits}]}
        path.write_text(json.dumps(document))
        return path

    def scene(
        self,
        devices: Sequence[Device] = (),
        errors: Sequence[SourceError] = (),
        specs: Sequence[Path] | None = None,
    ) -> Scene:
        folders = [self.specs] if specs is None else specs
        return Scene(
            self.home, self.roots, Inventory(tuple(devices), tuple(errors)), Cache([os.fspath(f) for f in folders])
        )

    @staticmethod
    def card(number: int = 0, **fields: Any) -> Device:
        base: dict[str, Any] = {
            "driver": "gpu.nvidia.com",
            "pool": "box",
            "name": f"gpu-{number}",
            "vendor": "nvidia",
            "model": "H100",
            "attributes": {"type": "gpu"},
            "source": "cdi+nvml",
        }
        return Device(**(base | fields))

    @staticmethod
    def verdicts(findings: Any) -> dict[str, str]:
        return {finding.id: finding.verdict for finding in findings}

    @staticmethod
    def only(findings: Any) -> Finding:
        (finding,) = findings
        assert isinstance(finding, Finding)
        return finding


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path)
