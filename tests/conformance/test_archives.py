"""The two places that check archives refuse the same ones: `local` unpacks without dibs, and has its own copy."""

from __future__ import annotations

import tarfile

from hypothesis import given
from hypothesis import strategies as st

from dibs.backends import tars
from dibs.backends.local import archive
from dibs.errors import InvalidRequest

PARTS = st.sampled_from(["", ".", "..", "a", "b", "...", "a b"])
PATHS = st.builds("/".join, st.lists(PARTS, min_size=1, max_size=5))
KINDS = st.sampled_from(
    [
        tarfile.REGTYPE,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.CONTTYPE,
        b"x",
    ]
)


@given(name=PATHS, target=PATHS, kind=KINDS, folder=st.sampled_from(["/", "/a", "/a/b"]))
def test_local_and_the_others_refuse_the_same_members_with_the_same_words(
    name: str, target: str, kind: bytes, folder: str
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    ours: list[str] = []
    theirs: list[str] = []
    try:
        archive.check(member, folder)
    except archive.Refused as error:
        theirs.append(str(error))
    try:
        tars.check(member, folder)
    except InvalidRequest as error:
        ours += [problem.reason for problem in error.problems]
    assert ours == theirs
