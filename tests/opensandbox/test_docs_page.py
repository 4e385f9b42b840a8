"""The Python of README.md and docs/opensandbox.md, run against a gateway: it prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.opensandbox.conftest import Place

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text() + (ROOT / "docs" / "opensandbox.md").read_text()
EXAMPLES = re.findall(r"```py\n(.*?)```\n```text\n(.*?)```", TEXT, re.DOTALL)


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) == TEXT.count("```py\n") == 3


@pytest.mark.parametrize(("code", "shown"), EXAMPLES)
def test_an_example_prints_what_the_page_shows(place: Place, code: str, shown: str) -> None:
    env = {"PATH": os.environ["PATH"], "OPEN_SANDBOX_DOMAIN": place.domain, "OPEN_SANDBOX_API_KEY": place.token}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == (shown, 0), done.stderr[-2000:]
