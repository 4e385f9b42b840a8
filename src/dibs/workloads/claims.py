"""Claims that are kept under a name, and claims in files: `dibs run --claim NAME|FILE`.

A kept claim is a YAML file in the configuration folder, as kubectl would take it. What is kept was checked when it was
kept, and is checked again when it is used.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from dibs.errors import InvalidRequest, NotFound, StateError
from dibs.home import Home

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_LARGEST = 1 << 20


def folder(home: Home) -> Path:
    return home.config / "claims"


def kept(home: Home) -> list[str]:
    """The names of the kept claims."""
    try:
        return sorted(path.stem for path in folder(home).glob("*.yaml"))
    except OSError as error:
        raise _unusable(home, error) from error


def keep(home: Home, name: str, claim: dict[str, Any]) -> Path:
    """Keep a claim under a name, in place of one that had it. Refused if it is wrong."""
    import yaml

    from dibs.request import parse_request

    path = _path(home, name)
    parse_request({"claim": claim})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.new")
        draft.write_text(yaml.safe_dump(claim, sort_keys=False))
        draft.replace(path)
    except OSError as error:
        raise _unusable(home, error) from error
    return path


def _path(home: Home, name: str) -> Path:
    """Where a claim of that name is kept. A name that could lead elsewhere is refused."""
    if _NAME.fullmatch(name) is None:
        remedy = "a name is up to 63 lower-case letters, digits and -"
        reason = "this cannot be the name of a claim"
        raise InvalidRequest(reason, field="name", value=name, code="NAME_INVALID", remedy=remedy)
    return folder(home) / f"{name}.yaml"


def forget(home: Home, name: str) -> None:
    try:
        _path(home, name).unlink()
    except FileNotFoundError:
        raise _unknown(home, name) from None


def load(home: Home, name_or_path: str) -> dict[str, Any]:
    """A claim by its kept name, or from a file. A word without a slash or dot is a name."""
    if _NAME.fullmatch(name_or_path) and not os.path.exists(name_or_path):
        path = _path(home, name_or_path)
        if not path.exists():
            raise _unknown(home, name_or_path)
        return read(path)
    return read(Path(name_or_path))


def read(path: Path) -> dict[str, Any]:
    """The one claim in a file."""
    from dibs.devices.yaml_documents import Unreadable, documents

    def refuse(reason: str) -> InvalidRequest:
        remedy = "give one ResourceClaim, as kubectl takes it; `dibs claims check` says more"
        return InvalidRequest(reason, field="claim", value=str(path), code="CLAIM_INVALID", remedy=remedy)

    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise refuse("the file is larger than 1 MiB")
        found = [document for document in documents(text) if document is not None]
    except FileNotFoundError as error:
        remedy = "check the path, or `dibs claims ls` for the kept ones"
        raise NotFound(
            "there is no such file", field="claim", value=str(path), code="CLAIM_NOT_FOUND", remedy=remedy
        ) from error
    except OSError as error:
        raise refuse(f"it cannot be read: {error.strerror}") from error
    except Unreadable as error:
        raise refuse(f"it cannot be read as YAML or JSON: {error}") from error
    kinds = ("ResourceClaim", "ResourceClaimTemplate")
    wanted = [one for one in found if isinstance(one, dict) and one.get("kind") in kinds]
    if len(wanted) != 1 or len(found) != 1:
        raise refuse(f"it holds {len(found)} objects, of which {len(wanted)} are claims")
    return dict(wanted[0])


def _unknown(home: Home, name: str) -> NotFound:
    names = ", ".join(kept(home))
    remedy = f"{f'there are {names}' if names else 'none is kept yet'}; or give a file, as in ./{name}.yaml"
    return NotFound(
        "no claim is kept under that name", field="claim", value=name, code="CLAIM_NOT_FOUND", remedy=remedy
    )


def _unusable(home: Home, error: OSError) -> StateError:
    return StateError(
        f"the folder of claims cannot be used: {error.strerror}", field="claims", value=str(folder(home)),
        remedy="check its permissions",
    )  # fmt: skip
