"""The documentation is true: every command and every Python block in it is run, every link leads somewhere."""

from __future__ import annotations

import re
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from tests import needs
from tests.installation import private

from .pages import COMPILED_ONLY, PAGES, ROOT, Block, Runner, blocks, can_limit, matches, steps, tokens, walk

DOCS = ROOT / "docs"
names = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
_DIBS_LINE = re.compile(r"^\s*(?:\$ )?(?:\w+=\S+ )*dibs +[a-z]", re.MULTILINE)


@names
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    if page.name == "host.md" and (reason := private()):
        pytest.skip(reason)
    if page.name == "kubeflow.md":
        needs.shared_network()
    runner = Runner(tmp_path, limits=can_limit())
    try:
        following = {block.line: after for block, after in pairwise(blocks(page))}
        for block, step, outcome in walk(page, runner):
            printed = "\n".join(outcome.output)
            if step is None:
                assert outcome.code == 0, f"{page.name}:{block.line}: the Python failed:\n{printed}"
                told = following.get(block.line)
                if told is not None and told.language == "text" and told.after == "python":
                    shown = tuple(told.text.rstrip().splitlines())
                    assert matches(shown, outcome.output), f"{page.name}:{told.line}: it prints:\n{printed}"
                continue
            place = f"{page.name}:{step.line}: {step.command}"
            assert outcome.code == step.code, f"{place}\nended with {outcome.code}, not {step.code}:\n{printed}"
            if step.output:
                remedy = "make docs, or: scripts/generate_docs.py --outputs"
                assert matches(step.output, outcome.output), f"{place}\nnow prints ({remedy}):\n{printed}"
    finally:
        left = runner.left()
    assert left == [], f"{page.name} leaves sandboxes running"
    for reason in runner.skipped:
        print(f"not run: {reason}")


@names
def test_commands_are_in_blocks_that_are_run(page: Path) -> None:
    """What is not run may not hide a command of dibs, unless it needs root, or the README shows what the demo does."""
    demo = (ROOT / "scripts" / "demo").read_text() if page.name == "README.md" else ""
    for block in blocks(page):
        if block.language in ("text", "sh", "bash", ""):
            for match in _DIBS_LINE.finditer(block.text):
                line = block.text[match.start() :].lstrip("\n").partition("\n")[0].strip().removeprefix("$ ")
                assert line in demo, f"{page.name}:{block.line}: `{line}` belongs into a console block"


@names
def test_blocks_are_of_a_kind_that_is_known(page: Path) -> None:
    for block in blocks(page):
        assert block.language in ("console", "python", "yaml", "text", "sh"), f"{page.name}:{block.line}"


@names
def test_links_lead_to_what_exists(page: Path) -> None:
    for target in _links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{page.name}: {target} leads nowhere"
        if anchor:
            assert anchor in _anchors(other), f"{page.name}: {target}: there is no such heading"


@names
def test_a_page_renders_and_has_one_title(page: Path) -> None:
    html = MarkdownIt("commonmark").enable("table").render(page.read_text())
    assert html.count("<h1>") == 1
    assert "<table>" in html or "|---" not in page.read_text()


def test_every_page_is_reached_from_the_contents() -> None:
    seen: set[Path] = set()
    todo = [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for target in _links(page):
            other = (page.parent / target.partition("#")[0]).resolve()
            if other.suffix == ".md" and other.is_file():
                todo.append(other)
    assert set(PAGES) - seen - {ROOT / "README.md"} == set()


def test_every_page_has_a_way_back() -> None:
    for page in DOCS.glob("*.md"):
        if page.name not in ("index.md", *COMPILED_ONLY):
            assert "index.md" in _links(page), page.name


def test_pages_name_nothing_of_the_machine_they_were_written_on() -> None:
    for page in PAGES:
        for place in (str(ROOT), f"{tempfile.gettempdir()}/pytest", f"{tempfile.gettempdir()}/dibs-docs", "(root)"):
            assert place not in page.read_text(), page.name


def _links(page: Path) -> list[str]:
    return [
        str(child.attrs["href"])
        for token in tokens(page)
        for child in token.children or ()
        if child.type == "link_open"
    ]


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    found: set[str] = set()
    inside = tokens(page)
    for token, after in pairwise(inside):
        if token.type == "heading_open":
            text = re.sub(r"[`*_]", "", after.content).lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            while slug in found:
                slug += "-1"
            found.add(slug)
    return found


def test_the_reader_of_pages_can_tell_right_from_wrong() -> None:
    block = Block("console", "$ one   # exit 3\nout\n\n$ two\n> more\n…\nend\n", 10)
    first, second = steps(block)
    assert (first.command, first.code, first.output, first.line) == ("one", 3, ("out",), 10)
    assert (second.command, second.code, second.output) == ("two\nmore", 0, ("…", "end"))
    assert matches(second.output, ("a", "b", "end"))
    assert not matches(second.output, ("a", "b"))
    assert matches(("held by lab (anna) for 3s",), ("held   by lab (anna) for 12m05s",))
    assert not matches(("8 GPUs, 8 free",), ("8 GPUs, 7 free",))
