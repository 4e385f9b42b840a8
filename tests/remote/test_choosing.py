"""Which service is used, and that the question costs nothing where there is no gateway."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import DibsError, InvalidRequest, NotFound, StateError, Unsupported
from dibs.home import Home
from dibs.remote import choose, target
from dibs.remote.target import Context, Contexts, address_of, load, save
from dibs.workloads.service import Workloads


@pytest.fixture
def host_socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host service listens, and no home of one's own is named."""
    monkeypatch.delenv("DIBS_HOME")
    path = Path(choose.host_socket())
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        yield path


def chosen() -> str:
    found = choose.target()
    return found.address if found is not None else "in process"


def test_without_anything_it_is_done_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_HOME")
    assert chosen() == "in process"
    assert isinstance(choose.open_service(), Workloads)


def test_the_more_particular_is_taken_first(host_socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen() == f"unix://{host_socket}"
    save(Contexts("lab", {"lab": Context("https://lab.example")}))
    assert chosen() == "https://lab.example"
    monkeypatch.setenv("DIBS_URL", "http://127.0.0.1:8080/")
    assert chosen() == "http://127.0.0.1:8080"
    choose.name_gateway("/run/other.sock")
    assert chosen() == "unix:///run/other.sock"
    choose.name_gateway("lab")
    assert chosen() == "https://lab.example"
    choose.name_gateway("none")
    assert chosen() == "in process"


def test_a_context_can_say_that_there_is_no_gateway(host_socket: Path) -> None:
    save(Contexts("none", {}))
    assert chosen() == "in process"


def test_a_home_of_ones_own_is_not_the_hosts(host_socket: Path, monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    monkeypatch.setenv("DIBS_HOME", str(home.state))
    assert chosen() == "in process"


def test_a_home_that_is_given_is_used_here_whatever_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "http://127.0.0.1:1")
    assert isinstance(choose.open_service(home), Workloads)


def test_a_host_service_that_one_may_not_use_is_no_reason_to_work_beside_it(
    host_socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StateError) as refusal:
        choose.target()
    assert refusal.value.code == "HOST_SERVICE_DENIED"


@pytest.mark.parametrize(
    "address", ["ftp://x", "http://", "unix://host/path", "http://user:pass@host", "http://host?x=1", "HOST", "tcp://x"]
)
def test_what_is_no_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", address)
    with pytest.raises(InvalidRequest) as refusal:
        choose.target()
    assert refusal.value.code == "GATEWAY_INVALID"
    assert "DIBS_URL" in str(refusal.value)


def test_an_unknown_context_is_refused_with_the_known_ones() -> None:
    save(Contexts("", {"lab": Context("https://lab.example")}))
    choose.name_gateway("lba")
    with pytest.raises(NotFound) as refusal:
        choose.target()
    assert "lab" in str(refusal.value)


def test_the_token_comes_from_the_environment_or_the_context_and_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "token"
    secret.write_text("dibs_from-the-file\n")
    save(Contexts("lab", {"lab": Context("https://lab.example", token_file=str(secret))}))
    found = choose.target()
    assert found is not None
    assert found.token == "dibs_from-the-file"
    assert "dibs_from" not in repr(found)
    monkeypatch.setenv("DIBS_TOKEN", "dibs_from-the-environment")
    found = choose.target()
    assert found is not None
    assert found.token == "dibs_from-the-environment"


def test_a_token_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("two\nlines")
    save(Contexts("lab", {"lab": Context("https://lab.example", token_file=str(secret))}))
    with pytest.raises(InvalidRequest):
        choose.target()
    secret.unlink()
    with pytest.raises(StateError):
        choose.target()


def test_contexts_are_private_and_one_with_a_token_that_others_can_read_is_refused() -> None:
    save(Contexts("lab", {"lab": Context("https://lab.example", token="dibs_x")}))
    path = Path(choose.contexts_path())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(StateError) as refusal:
        load()
    assert "chmod 600" in str(refusal.value)


@pytest.mark.parametrize("text", ["current = 3", "x = 1", "[contexts.lab]\nurl = 'x'\nuser = 'y'", "not toml", "\xff"])
def test_contexts_that_cannot_be_read_are_an_error_and_not_none(text: str) -> None:
    path = Path(choose.contexts_path())
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="latin-1")
    with pytest.raises(StateError) as refusal:
        load()
    assert refusal.value.code == "CONTEXTS_UNUSABLE"


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.dictionaries(_TEXT, st.builds(Context, url=_TEXT, token_file=_TEXT, token=_TEXT, ca_file=_TEXT)), _TEXT)
def test_whatever_is_saved_is_loaded_again(contexts: dict[str, Context], current: str) -> None:
    kept = Contexts(current, contexts)
    save(kept)
    assert load() == kept


def test_an_address_is_kept_as_it_is_used() -> None:
    assert address_of("/run/x.sock", "url") == "unix:///run/x.sock"
    assert address_of("https://host/base/", "url") == "https://host/base"


def test_verbs_about_this_machine_say_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    choose.refuse_remotely("the simulated world")
    choose.about_this_machine("doctor")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("DIBS_URL", "http://127.0.0.1:8080")
    choose.about_this_machine("doctor")
    assert "http://127.0.0.1:8080" in capsys.readouterr().err
    with pytest.raises(Unsupported) as refusal:
        choose.refuse_remotely("the simulated world")
    assert "--gateway none" in str(refusal.value)


def test_the_decision_loads_nothing_where_there_is_no_gateway(eight_gpus: Home) -> None:
    """What `dibs run` loads in process has nothing of a gateway in it."""
    code = (
        "import sys\n"
        "from dibs.cli.main import run\n"
        "assert run(['run', '--gpu', '1', '--', 'true']) == 0\n"
        "heavy = ('dibs.http', 'dibs.wire', 'dibs.gateway', 'dibs.remote.', 'websockets', 'tomllib', 'ssl')\n"
        "print([name for name in sys.modules if name.startswith(heavy) and name != 'dibs.remote.choose'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def dibs(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        capture_output=True, text=True, check=False, env={**os.environ, **more}, input=more.get("INPUT", ""),
    )  # fmt: skip


def test_contexts_on_the_command_line(tmp_path: Path) -> None:
    assert "no contexts" in dibs("context", "ls").stdout
    made = dibs("context", "set", "lab", "--url", "http://127.0.0.1:1", "--token-stdin", INPUT="dibs_secret\n")
    assert made.returncode == 0, made.stderr
    assert dibs("context", "use", "lab").stdout == "lab: http://127.0.0.1:1\n"
    listed = dibs("context", "ls")
    assert "lab" in listed.stdout
    assert "dibs_secret" not in listed.stdout
    used = dibs("gpus")
    assert used.returncode == 86
    assert "context lab" in used.stderr
    assert "dibs_secret" not in used.stderr
    assert dibs("--gateway", "none", "sandbox", "ls").returncode == 0
    assert dibs("context", "use", "nope").returncode == 89
    assert dibs("context", "set", "none", "--url", "http://x").returncode == 80
    assert dibs("context", "rm", "lab").returncode == 0
    assert dibs("sandbox", "ls").returncode == 0


def test_a_file_with_a_token_is_checked_when_it_is_named(tmp_path: Path) -> None:
    refused = dibs("context", "set", "lab", "--url", "http://x", "--token-file", str(tmp_path / "none"))
    assert refused.returncode == 91


def test_every_error_of_choosing_is_one_of_dibs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "nonsense words")
    with pytest.raises(DibsError):
        target.find()
