"""`dibs sandbox cp` with a sandbox that wants out."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Dibs

from dibs.home import Home


def test_a_second_copy_does_not_write_through_a_link_that_the_first_one_left(
    home: Home, dibs: Dibs, tmp_path: Path
) -> None:
    """The link leads inside when it is looked at, and outside when it is written to."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    assert dibs("sandbox", "create", "--name", "lab").returncode == 0
    # Behind `b` the way back ends somewhere below /tmp/d; once `b` is another link it ends beside the target.
    deep = "c/1/2/3/4/5/6/7/8/9"
    steps = "../" * 3
    first = f"mkdir -p /tmp/d/{deep} && cd /tmp/d && ln -s {deep} b && ln -s b/{steps}victim z"
    assert dibs("sandbox", "exec", "lab", "--", "sh", "-c", first).returncode == 0
    dibs("sandbox", "cp", "lab:/tmp/d", str(out))
    second = "cd /tmp/d && rm b z && ln -s c b && echo pwned > z"
    assert dibs("sandbox", "exec", "lab", "--", "sh", "-c", second).returncode == 0
    done = dibs("sandbox", "cp", "lab:/tmp/d", str(out))
    assert victim.read_text() == "mine"
    assert done.returncode == 0, done.stderr
    assert not (out / "d/z").is_symlink()
    assert (out / "d/z").read_text() == "pwned\n"
