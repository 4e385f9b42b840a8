"""`dibs schema`: the JSON schema of what a command prints with `-o json`."""

from __future__ import annotations

from typing import Any

import click

from dibs.errors import NotFound


def answer_names(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    from dibs.cli.answers import ANSWERS

    return [name for name in ANSWERS if name.startswith(incomplete)]


@click.command(context_settings={"ignore_unknown_options": True})  # `gpus --cluster` is a name
@click.argument("name", nargs=-1, metavar="[COMMAND]", shell_complete=answer_names)
def schema(name: tuple[str, ...]) -> None:
    """The JSON schema of what COMMAND prints with `-o json`; without COMMAND, those of all commands.

    The schema of `error` is that of what any command prints to stderr when it fails.

    \b
    Examples:
      dibs schema gpus
      dibs schema sandbox show
      dibs schema gpus --cluster
      dibs schema explain pod
      dibs schema error
      dibs schema > dibs-schemas.json
    """
    from dibs.cli.answers import ANSWERS, FOREIGN
    from dibs.cli.output import as_text

    wanted = " ".join(name)
    if not name:
        click.echo(as_text({one: schema_of(one) for one in ANSWERS}, "json"), nl=False)
        return
    if wanted not in ANSWERS:
        known = FOREIGN.get(wanted)
        raise NotFound(
            f"its answer has the form of {known}" if known else "no command of this name has an answer with a schema",
            field="command", value=wanted, code="SCHEMA_NOT_FOUND", remedy=f"one of: {', '.join(ANSWERS)}",
        )  # fmt: skip
    click.echo(as_text(schema_of(wanted), "json"), nl=False)


def schema_of(name: str) -> dict[str, Any]:
    """The schema of one command's answer, complete in itself."""
    import msgspec

    from dibs.cli.answers import ANSWERS

    answer = ANSWERS[name]
    kinds = answer if isinstance(answer, tuple) else (answer,)
    found, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    main = dict(found[0]) if len(found) == 1 else {"anyOf": list(found)}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"dibs {name}"}
    return {**head, **main, "$defs": definitions}
