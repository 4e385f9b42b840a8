"""An OpenShell request as JSON in a file: what `dibs explain --openshell` reads. A whole CreateSandboxRequest, or its
SandboxSpec alone, in protobuf's JSON form (names in either case)."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from dibs.errors import InvalidRequest
from dibs.gateway.openshell import schema
from dibs.gateway.openshell.requests import Rules, Wanted, read_create


def read_document(text: str, rules: Rules) -> Wanted:
    """What the request asks for, or InvalidRequest with every problem."""
    request = schema.message("CreateSandboxRequest")()
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004 - told with the others
        json_format.ParseDict(found if _is_request(found) else {"spec": found}, request)
    except (ValueError, RecursionError, json_format.ParseError) as error:
        raise InvalidRequest(
            f"this is not a CreateSandboxRequest: {error}", field="openshell", code="MESSAGE_INVALID",
            remedy='write it as {"spec": {"resourceRequirements": {"gpu": {"count": 1}}}}',
        ) from error  # fmt: skip
    return read_create(request, rules)


def _is_request(found: dict[str, Any]) -> bool:
    fields = schema.message("CreateSandboxRequest").DESCRIPTOR.fields
    names = {field.name for field in fields} | {field.json_name for field in fields}
    return not found or bool(names & set(found))
