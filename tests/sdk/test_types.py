"""The types of the Python API: checkers accept what dibs accepts, and refuse what it would refuse."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.request.fields import BY_NAME
from dibs.sdk.fields import RequestFields, SandboxFields

PYRIGHT = "1.1.400"
GOOD = """
import dibs

dibs.run("true", gpu=2, memory="4Gi", wait="10m", mounts=["/a:/b"], env={"A": "1"}, timeout=5)
dibs.run(["true"], gpu={"model": "H100", "count": 2}, network="none")
with dibs.Sandbox(gpu=["H100:2", "L4"], command=["sleep", "1"], ttl=60) as box:
    code: int = box.run("true").code
with dibs.stream("ls", gpu=1) as process:
    for piece in process:
        data: bytes = piece.data


async def main() -> None:
    await dibs.run_async("true", gpu="all")
    async with dibs.AsyncSandbox(gpu=1, labels={"a": "b"}) as box:
        text: str = (await box.run("ls", timeout=1.0)).text
    async with dibs.stream_async("ls", gpu=1) as process:
        async for piece in process:
            print(piece.stream)
"""
BAD = [
    'dibs.run("true", gpuu=2)',
    'dibs.run("true", gpu=2, memory=["4Gi"])',
    'dibs.run("true", network="vpn")',
    "dibs.run(5, gpu=1)",
    'dibs.run("true", command="false")',
    "dibs.Sandbox(gpus_=1)",
    "dibs.explain(gpu=1, timeout_=3)",
    'dibs.AsyncSandbox(ttl=["1h"])',
    'dibs.run("true", timeout="5s")',
]


def test_the_typed_arguments_are_the_fields_of_a_request() -> None:
    assert set(SandboxFields.__annotations__) | set(RequestFields.__annotations__) == set(BY_NAME)


def _files(folder: Path) -> list[Path]:
    (folder / "good.py").write_text(GOOD)
    for number, line in enumerate(BAD):
        (folder / f"bad{number}.py").write_text(f"import dibs\n\n{line}\n")
    return sorted(folder.glob("*.py"))


def test_mypy_accepts_what_is_right_and_refuses_what_is_not(tmp_path: Path) -> None:
    files = _files(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *map(str, files)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    wrong = {Path(line.partition(":")[0]).name for line in done.stdout.splitlines() if ": error:" in line}
    assert wrong == {file.name for file in files} - {"good.py"}, done.stdout + done.stderr


@pytest.fixture(scope="session")
def pyright() -> Path:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    folder = Path.home() / ".cache" / "dibs-npm" / f"pyright-{PYRIGHT}"
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "node_modules" / "pyright" / "index.js"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            (folder / "package.json").write_text('{"private": true}')
            words = ["npm", "install", "--no-audit", "--no-fund", f"pyright@{PYRIGHT}"]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                pytest.skip(f"npm cannot install pyright: {done.stderr.strip().splitlines()[-1:]}")
    return script


def test_pyright_accepts_what_is_right_and_refuses_what_is_not(tmp_path: Path, pyright: Path) -> None:
    files = _files(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"pythonVersion": "3.11", "typeCheckingMode": "standard"}))
    done = subprocess.run(
        ["node", str(pyright), "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = {Path(item["file"]).name for item in found if item["severity"] == "error"}
    assert wrong == {file.name for file in files} - {"good.py"}, found
