"""`dibs claims`: device claims in Kubernetes' own form. Check them, and see what would be given for them, and why."""

from __future__ import annotations

import click

from dibs.cli.output import fail, output_option, say, show, show_data


@click.group()
def claims() -> None:
    """Device claims (resource.k8s.io/v1), the canonical form of every request for devices.

    \b
    Examples:
      dibs claims check claim.yaml
      dibs claims solve -f claim.yaml
      dibs claims solve -f cluster.yaml --node node-7
      dibs claims keep pair -f pair.yaml
    """


@claims.command()
@click.argument("file", nargs=-1, required=True, metavar="FILE...")
@output_option(wide=False)
def check(file: tuple[str, ...], output: str) -> int:
    """Check files with claims, classes, slices: every mistake, with its place, as Kubernetes would say it.

    YAML or JSON, any number of documents, also what `kubectl get -o yaml` prints; - is the standard input. The exit
    code is 80 if anything is wrong.

    \b
    Examples:
      dibs claims check claim.yaml
      kubectl get resourceslices -o yaml | dibs claims check -
    """
    from dibs.cli.claims_output import checked_data, checked_lines
    from dibs.devices.manifests import read_manifests

    found = read_manifests(file)
    if output == "table":
        show(checked_lines(file, found))
    else:
        show_data(checked_data(file, found), output, own=False)
    return 80 if found.problems else 0


@claims.command()
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE", help="Objects; may be repeated.")
@click.option("--node", metavar="NAME", help="Only for this node. Default: each in turn.")
@click.option("--feature-gates", metavar="A=true,B=false", help="Kubernetes' gates. Default: those of 1.37.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Give up after so many steps of the search.")
@output_option(wide=False)
def solve(files: tuple[str, ...], node: str | None, feature_gates: str | None, steps: int | None, output: str) -> int:
    """What the allocator would do with these objects, and why. Nothing is booked.

    ResourceSlices, DeviceClasses, Nodes, DeviceTaintRules and ResourceClaims (or templates), as kubectl takes them. A
    claim with a status.allocation is in use; the others are allocated together, on each node alone. Without any
    ResourceSlice: on the devices of this host, with what is held here. dibs' own classes are always known.

    Exit code: 0 allocated on some node (or the named one), 82 cannot be had, 80 bad input, 90 gave up.

    \b
    Examples:
      dibs claims solve -f claim.yaml
      dibs claims solve -f slices.yaml -f claim.yaml -o json
      dibs claims solve -f cluster.yaml --node node-7
      dibs claims solve -f all.yaml --feature-gates DRADeviceTaints=false
    """
    from dibs.cli.claims_output import problem_lines, solved_data, solved_lines
    from dibs.cli.claims_solve import Unsolvable, exit_code, gather, read_gates, solve_on
    from dibs.errors import InvalidRequest

    gates = read_gates(feature_gates)
    try:
        case = gather(files, gates)
    except Unsolvable as error:
        if output == "table":
            for line in problem_lines(error.problems):
                say(line)
        else:
            fail(InvalidRequest([problem.problem("CLAIM_INVALID") for problem in error.problems]), output)
        return 80
    answers = [solve_on(case, one, steps) for one in case.choose(node)]
    if output == "table":
        show(solved_lines(case, answers))
    else:
        show_data(solved_data(case, answers), output, own=False)
    return exit_code(answers)


@claims.command()
@click.argument("name")
@click.option("-f", "--file", required=True, metavar="FILE", help="One ResourceClaim or ResourceClaimTemplate.")
def keep(name: str, file: str) -> None:
    """Keep a claim under NAME, for `dibs run --claim NAME`. One that had the name is replaced.

    \b
    Example:
      dibs claims keep pair -f pair.yaml
    """
    from dibs.cli.service import keep_claim

    click.echo(keep_claim(name, file))


@claims.command()
@output_option(wide=False)
def ls(output: str) -> None:
    """The claims that are kept.

    \b
    Example:
      dibs claims ls
    """
    from dibs.cli.service import kept_claims

    names = kept_claims()
    if output == "table":
        show(names or ["no claims are kept"])
    else:
        show_data({"claims": names}, output)


@claims.command()
@click.argument("name")
def rm(name: str) -> None:
    """Forget a kept claim.

    \b
    Example:
      dibs claims rm pair
    """
    from dibs.cli.service import forget_claim

    forget_claim(name)
