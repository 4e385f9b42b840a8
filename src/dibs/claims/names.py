"""Kubernetes' rules for names, versions and identifiers, as far as the objects of this package need them.

`validation` and `slice_validation` call these; each adds what it finds to the errors, under the given path.
"""

from __future__ import annotations

import re

from dibs.claims.fielderrors import FieldErrors
from dibs.patterns import lazy_pattern

_LABEL = lazy_pattern(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = lazy_pattern(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_IDENTIFIER = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LABEL_PART = lazy_pattern(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_NUMBER = r"(0|[1-9]\d*)"
_PRE = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = lazy_pattern(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRE}(?:\.{_PRE})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?", re.ASCII
)
_UUID = lazy_pattern(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)

MAX_DOMAIN = 63
MAX_ID = 32
MAX_LABEL = 63
MAX_SUBDOMAIN = 253

_LABEL_RULE = f"must be lower case letters, digits and '-', with no '-' at either end, at most {MAX_LABEL}"
_SUBDOMAIN_RULE = f"must be lower case letters, digits, '-' and '.', each part like a label, at most {MAX_SUBDOMAIN}"


def check_label(errors: FieldErrors, path: str, name: str) -> None:
    """A DNS-1123 label: names of requests, devices, counters."""
    if not name:
        errors.required(path)
    elif len(name) > MAX_LABEL or _LABEL.fullmatch(name) is None:
        errors.invalid(path, name, _LABEL_RULE)


def check_subdomain(errors: FieldErrors, path: str, name: str) -> None:
    """A DNS-1123 subdomain: names of classes and nodes."""
    if not name:
        errors.required(path)
    elif len(name) > MAX_SUBDOMAIN or _SUBDOMAIN.fullmatch(name) is None:
        errors.invalid(path, name, _SUBDOMAIN_RULE)


def check_driver(errors: FieldErrors, path: str, name: str) -> None:
    if not name:
        errors.required(path)
        return
    errors.shorter(path, name, MAX_DOMAIN)
    if _SUBDOMAIN.fullmatch(name.lower()) is None:
        errors.invalid(path, name, _SUBDOMAIN_RULE)


def check_pool(errors: FieldErrors, path: str, name: str) -> None:
    """One or more subdomains, separated by slashes."""
    if not name:
        errors.required(path)
        return
    errors.shorter(path, name, MAX_SUBDOMAIN)
    for part in name.split("/"):
        if len(part) > MAX_SUBDOMAIN or _SUBDOMAIN.fullmatch(part) is None:
            errors.invalid(path, part, _SUBDOMAIN_RULE)


def check_qualified(errors: FieldErrors, path: str, name: str) -> None:
    """An identifier, or a domain and an identifier: keys of attributes and capacities.

    Whatever follows a second slash is not looked at, as in Kubernetes.
    """
    if not name:
        errors.required(path, "name required")
        return
    parts = name.split("/")
    if len(parts) == 1:
        _check_identifier(errors, path, parts[0])
    elif len(parts) == 2:
        if not parts[0]:
            errors.invalid(path, parts[0], "the domain must not be empty")
        else:
            _check_domain(errors, path, parts[0])
        if not parts[1]:
            errors.invalid(path, parts[1], "the name must not be empty")
        else:
            _check_identifier(errors, path, parts[1])


def check_fully_qualified(errors: FieldErrors, path: str, name: str) -> None:
    """A domain and an identifier: what constraints compare."""
    check_qualified(errors, path, name)
    if name and "/" not in name:
        errors.invalid(path, name, "must include a domain")


def _check_identifier(errors: FieldErrors, path: str, name: str) -> None:
    if len(name) > MAX_ID:
        errors.too_long(path, MAX_ID)
    if _IDENTIFIER.fullmatch(name) is None:
        errors.invalid(path, name, "must be letters, digits and '_', not starting with a digit")


def _check_domain(errors: FieldErrors, path: str, name: str) -> None:
    if len(name) > MAX_DOMAIN:
        errors.too_long(path, MAX_DOMAIN)
    if _SUBDOMAIN.fullmatch(name) is None:
        errors.invalid(path, name, _SUBDOMAIN_RULE)


def check_version(errors: FieldErrors, path: str, version: str, limit: int) -> None:
    if _SEMVER.fullmatch(version) is None:
        errors.invalid(path, version, "must be a version such as 1.2.3 or 1.2.3-rc.1 (semver.org 2.0.0)")
    errors.shorter(path, version, limit)


def check_share_id(errors: FieldErrors, path: str, share_id: str) -> None:
    if _UUID.fullmatch(share_id) is None:
        errors.invalid(path, share_id, "must be a UUID in lower case, 36 characters long")


def check_label_key(errors: FieldErrors, path: str, key: str) -> None:
    """The key of a label or a taint: a name of at most 63, optionally behind a domain."""
    domain, slash, name = key.rpartition("/")
    if slash and (len(domain) > MAX_SUBDOMAIN or _SUBDOMAIN.fullmatch(domain) is None):
        errors.invalid(path, key, "the part before the slash must be a domain")
    if len(name) > MAX_LABEL or _LABEL_PART.fullmatch(name) is None:
        errors.invalid(path, key, "must be letters, digits, '-', '_' and '.', alphanumeric at both ends, at most 63")


def check_label_value(errors: FieldErrors, path: str, value: str) -> None:
    if value and (len(value) > MAX_LABEL or _LABEL_PART.fullmatch(value) is None):
        errors.invalid(path, value, "must be letters, digits, '-', '_' and '.', alphanumeric at both ends, at most 63")
