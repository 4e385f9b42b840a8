"""The generated parts of the documentation are current, and nothing is missing in them."""

from __future__ import annotations

import re
import subprocess
import sys

from .pages import ROOT

SCRIPT = ROOT / "scripts" / "generate_docs.py"
# Written another way than the generator finds them, so that the one can catch the other's mistake.
_CODES = re.compile(r"""(?:\b(?:Problem|problem|refuse)\(\s*|\bcode=|default_code = )"([A-Z][A-Z0-9_]+)\"""")


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_problem_code_of_the_source_is_on_the_page() -> None:
    listed = set(re.findall(r"^\| `([A-Z0-9_]+)` \|", (ROOT / "docs/exit-codes.md").read_text(), re.MULTILINE))
    used = {code for path in (ROOT / "src").rglob("*.py") for code in _CODES.findall(path.read_text())}
    assert used
    assert used - listed == set()


def test_codes_that_are_put_together_are_found_too() -> None:
    """`f"{field.upper()}_INVALID"`, a choice of two, a table of them."""
    page = (ROOT / "docs/exit-codes.md").read_text()
    for code in ("NAME_INVALID", "NETWORK_INVALID", "COMMAND_NOT_FOUND", "LEDGER_CORRUPT", "DISK_FULL"):
        assert f"| `{code}` |" in page


def test_every_exit_code_of_an_error_is_on_the_page() -> None:
    from dibs import errors

    page = (ROOT / "docs/exit-codes.md").read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DibsError)]
    for kind in kinds:
        assert f"\n| {kind.exit_code} | " in page, kind.__name__
        if kind is not errors.DibsError:
            assert f"| `{kind.__name__}` |" in (ROOT / "docs/python.md").read_text(), kind.__name__


def test_every_silent_drop_test_is_on_the_page_and_every_one_there_exists() -> None:
    listed = set(re.findall(r"`(test_sd_\w+)`", (ROOT / "docs/silent-drops.md").read_text()))
    written = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_sd_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert written
    assert listed == written


def test_the_catalogue_has_every_line_once_and_each_has_a_proof_or_waits_for_a_part() -> None:
    page = (ROOT / "docs/silent-drops.md").read_text()
    catalogue, _, proofs = page.partition("## The tests")
    wanted = [f"SD-{number:02}" for number in range(1, 55)]
    assert re.findall(r"^\| (SD-\d\d) \|", catalogue, re.MULTILINE) == wanted
    assert re.findall(r"^\| (SD-\d\d) \| (?:`test_sd_|planned, with the )", proofs, re.MULTILINE) == wanted


def test_what_does_not_exist_yet_is_marked_as_planned_wherever_it_is_described() -> None:
    page = (ROOT / "docs/silent-drops.md").read_text()
    catalogue, _, proofs = page.partition("## The tests")
    planned = set(re.findall(r"^\| (SD-\d\d) \|.*\| planned: [^|]* \|$", catalogue, re.MULTILINE))
    assert planned == set(re.findall(r"^\| (SD-\d\d) \| planned, with the ", proofs, re.MULTILINE))
