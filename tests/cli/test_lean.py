"""Libraries are loaded without what they seldom use, and work as if nothing had been left out."""

from __future__ import annotations

import subprocess
import sys

import pytest


def after_load(program: str) -> str:
    """What a program prints that begins as a plain command line does."""
    begin = "import sys\nfrom dibs.cli import lean\nlean.load()\n"
    done = subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("import pathlib; print(pathlib.Path('/a b/\u00e9').as_uri())", "file:///a%20b/%C3%A9"),
        ("import msgspec\nprint(msgspec.json.schema(int))", "{'type': 'integer'}"),
        ("import msgspec\nprint(msgspec.inspect.type_info(str))",
         "StrType(min_length=None, max_length=None, pattern=None)"),
        ("import msgspec.inspect\nprint(msgspec.inspect is sys.modules['msgspec.inspect'])", "True"),
        ("import msgspec, uuid\nprint(msgspec.json.encode(uuid.UUID(int=1)))",
         "b'\"00000000-0000-0000-0000-000000000001\"'"),
        ("import uuid\nprint(uuid._LINUX)", str(sys.platform == "linux")),
        ("import platform, textwrap\nprint(platform.python_implementation(), textwrap.dedent('  a'))", "CPython a"),
        ("from urllib.parse import urlsplit\nprint(urlsplit('http://h/p').path)", "/p"),
        ("import datetime, pickle\nd = datetime.datetime.now()\nprint(pickle.loads(pickle.dumps(d)) == d)", "True"),
        ("import datetime\nprint(datetime.datetime.strptime('2026', '%Y').year)", "2026"),
        ("import datetime, msgspec\nprint(msgspec.json.encode(datetime.date(2026, 1, 2)))", "b'\"2026-01-02\"'"),
        ("import msgspec\nprint(msgspec.yaml.decode(b'a: 1'), msgspec.toml.decode(b'a = 1'))", "{'a': 1} {'a': 1}"),
        ("import msgspec\nprint(msgspec.json.schema_components([int])[0])", "({'type': 'integer'},)"),
        ("import uuid\nprint(uuid.uuid1().version, uuid.uuid1() != uuid.uuid1())", "1 True"),
        ("import pathlib\nprint(pathlib.PureWindowsPath('c:/a') / 'b')", r"c:\a\b"),
        ("import pathlib\nprint(pathlib.PurePath('a.py').match('*.py'))", "True"),
        ("import fnmatch, ntpath\nprint(fnmatch.fnmatch('ab', 'a*'), ntpath.join('a', 'b'))", r"True a\b"),
        ("import typing_extensions\nprint(typing_extensions.__name__)", "typing_extensions"),
    ],
)  # fmt: skip
def test_nothing_behaves_differently(program: str, printed: str) -> None:
    assert after_load(program) == printed


def test_what_is_loaded_already_stays() -> None:
    program = (
        "import platform, uuid, sys\nfrom dibs.cli import lean\nlean.load()\nprint(sys.modules['platform'] is platform)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
