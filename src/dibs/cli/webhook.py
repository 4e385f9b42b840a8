"""`dibs webhook`: dibs' judgement of TrainJobs at the admission of a cluster that keeps Kubeflow Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dibs.gateway.webhook.reviews import Source

Json = dict[str, Any]


@click.command()
@click.option(
    "--listen", default="127.0.0.1:8443", show_default=True, metavar="HOST:PORT", help="Where to serve HTTPS."
)
@click.option("--cert", metavar="FILE", help="Its certificate (PEM).")
@click.option("--key", metavar="FILE", help="The certificate's key (PEM).")
@click.option(
    "--cluster", metavar="CONTEXT", help="Of the kubeconfig. Default: the current one, or the one dibs runs in."
)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Runtimes and claims of files, no cluster.")
@click.option(
    "--no-claims", is_flag=True, help="Forbid device claims in TrainJobs, as Kubeflow Trainer does with its gate off."
)
@click.option("--manifest", metavar="URL", help="Print the registration for this address, and end.")
@click.option("--ca", metavar="FILE", help="With --manifest: the authority that signed the certificate.")
def webhook(
    listen: str, cert: str | None, key: str | None, cluster: str | None, files: tuple[str, ...], manifest: str | None,
    ca: str | None, no_claims: bool,
) -> None:  # fmt: skip
    """Refuse broken TrainJobs at `kubectl apply`, and fill in the number of processes.

    What Kubeflow Trainer accepts and then loses, or reports only in an Event, is refused with its path and a remedy;
    what looks wrong is a warning. Runtimes, claims and classes are looked up in the cluster. An answer that cannot be
    given is an error, and the registration's failurePolicy decides.

    \b
    Examples:
      dibs webhook --listen 0.0.0.0:8443 --cert tls.crt --key tls.key
      dibs webhook --manifest https://dibs.trainer.svc:8443 --ca ca.crt
    """
    from dibs.errors import InvalidRequest

    if manifest is not None:
        _print_manifest(manifest, ca)
        return
    if not cert or not key:
        remedy = "an API server speaks HTTPS to webhooks only: give --cert and --key"
        raise InvalidRequest("there is no certificate", field="--cert", code="FILE_INVALID", remedy=remedy)
    from dibs.gateway.webhook.server import serve
    from dibs.settings import address

    try:
        host, port = address(listen)
    except ValueError as error:
        raise InvalidRequest(str(error), field="--listen", code="SETTING_INVALID") from error
    source: Source
    if files:
        import msgspec

        from dibs.cli.train_input import read_files
        from dibs.gateway.webhook.files import Files
        from dibs.train import shipped

        bundle = read_files(files)
        own = {("ClusterTrainingRuntime", one["metadata"]["name"]): one for one in shipped.all_runtimes()}
        facts = msgspec.structs.replace(bundle.facts(), claims_enabled=not no_claims)
        source = Files({**own, **bundle.runtimes}, facts)
    else:
        from dibs.kube.config import find_cluster
        from dibs.workloads.cluster_jobs.source import InCluster

        source = InCluster(find_cluster(cluster), claims_enabled=not no_claims)
    serve(source, host, port, cert, key, lambda bound: click.echo(f"serving https://{host}:{bound}", err=True))


def _print_manifest(url: str, ca: str | None) -> None:
    import base64
    from pathlib import Path

    from dibs.cli.output import as_text
    from dibs.errors import InvalidRequest

    if not url.startswith("https://"):
        raise InvalidRequest("must begin with https://", field="--manifest", value=url, code="FILE_INVALID")
    if ca is None:
        remedy = "give --ca: the API server checks the certificate against it"
        raise InvalidRequest("there is no authority", field="--ca", code="FILE_INVALID", remedy=remedy)
    bundle = base64.b64encode(Path(ca).read_bytes()).decode()
    made = [registration(kind, url.rstrip("/"), bundle) for kind in ("Mutating", "Validating")]
    click.echo("---\n".join(as_text(one, "yaml") for one in made), nl=False)


def registration(kind: str, url: str, bundle: str) -> Json:
    """A MutatingWebhookConfiguration or a ValidatingWebhookConfiguration."""
    resources = ["trainjobs"] if kind == "Mutating" else ["trainjobs", "trainingruntimes", "clustertrainingruntimes"]
    rule = {
        "apiGroups": ["trainer.kubeflow.org"],
        "apiVersions": ["v1alpha1"],
        "operations": ["CREATE"] if kind == "Mutating" else ["CREATE", "UPDATE"],
        "resources": resources,
    }
    path = "mutate" if kind == "Mutating" else "validate"
    hook = {
        "name": f"{path}.train.dibs.local",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": f"{url}/{path}", "caBundle": bundle},
        "failurePolicy": "Fail",
        "rules": [rule],
        "sideEffects": "None",
        "timeoutSeconds": 10,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "dibs-train"},
        "webhooks": [hook],
    }
