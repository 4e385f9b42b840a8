"""The verbs of `dibs`, where each of them lives, and the page that lists them.

`__main__` prints the page without loading anything else; `main` loads the verb that was called. It must import nothing
that takes time: `dibs --help` is the first thing that people try.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing for it would cost more than this whole page
if TYPE_CHECKING:
    from typing import IO

# Section of the page -> verb -> where it is (module, or module:attribute) and what it does.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "run": ("dibs.cli.run", "Run a command with GPUs in a new sandbox."),
        "sandbox": ("dibs.cli.sandbox", "Create, use and remove long-lived sandboxes."),
        "ps": ("dibs.cli.sandbox:ls", "List the sandboxes (sandbox ls)."),
        "exec": ("dibs.cli.sandbox:exec_", "Run a command in a sandbox."),
        "logs": ("dibs.cli.sandbox:logs", "Show the output of a sandbox."),
        "cp": ("dibs.cli.sandbox:cp", "Copy files into a sandbox or out of it."),
        "wait": ("dibs.cli.sandbox:wait", "Wait for sandboxes to end."),
        "stop": ("dibs.cli.sandbox:stop", "Stop sandboxes; keep their logs and receipts."),
        "rm": ("dibs.cli.sandbox:rm", "Stop sandboxes and remove their files."),
    },
    "See": {
        "gpus": ("dibs.cli.gpus", "List the GPUs of this host and their holders."),
        "leases": ("dibs.cli.leases", "List held devices and the requests waiting for them."),
        "queue": ("dibs.cli.queue", "List waiting requests; remove a ticket."),
        "explain": ("dibs.cli.explain", "Explain what a request would get, without creating anything."),
        "receipt": ("dibs.cli.receipt", "Show the proof of what a sandbox received."),
        "claims": ("dibs.cli.claims", "Check, solve and store device claims."),
        "train": ("dibs.cli.train", "Run, follow and explain multi-node training jobs."),
    },
    "Serve": {
        "serve": ("dibs.cli.serve", "Serve sandboxes over HTTP to dibs and OpenSandbox clients."),
        "token": ("dibs.cli.token", "Create, list and revoke tokens of a gateway."),
        "host": ("dibs.cli.host", "Install one service for all users of this machine."),
        "context": ("dibs.cli.context", "Manage named gateways, and select one."),
        "node": ("dibs.cli.node", "Offer this node's devices to Kubernetes: DRA or device plugin."),
        "webhook": ("dibs.cli.webhook", "Validate TrainJobs at admission to a cluster."),
    },
    "Look after": {
        "doctor": ("dibs.cli.doctor", "Check this host; every finding comes with its fix."),
        "cdi": ("dibs.cli.cdi", "Read, check and inject the CDI specs of this host."),
        "table": ("dibs.cli.table", "Show which fields each backend delivers or refuses."),
        "schema": ("dibs.cli.schema", "Print the JSON schema of a command with -o json."),
        "completion": ("dibs.cli.completion", "Set up completion for bash, zsh or fish."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

_INTRODUCTION = """\
dibs: call dibs on a GPU.

Ask for accelerators once. Get them exclusively and with a receipt, or be told
exactly why not. Nothing is booked twice, nothing is dropped silently.

"""
_EXAMPLES = (
    ("dibs run --gpu 1 -- python train.py", "one GPU, any"),
    ("dibs run --gpu H100:2 --wait 10m -- ./job", "two H100; queue while they are held"),
    ("dibs explain --gpu 80GB..:4", "would that work? why not?"),
    ("dibs gpus", "who holds what"),
    ("dibs gpus simulate 8 --model H100", "no GPU here? simulate some"),
)
_OPTIONS = (
    ("--gateway URL", "Use this gateway, or context; `none`: no gateway."),
    ("--version", "Show the version."),
    ("-h, --help", "Show this page."),
)
_CLOSING = """
`dibs COMMAND --help` says more. `-o json|yaml` gives any answer as data, and
`dibs schema` its JSON schema.
Exit codes: 0 done · 1 a check failed · 2 usage · 80 invalid · 81 unsupported ·
82 no match · 83 busy · 84 unhealthy · 86 backend · 87 mismatch · 88 conflict ·
89 not found · 90 timeout · 91 ledger · 126/127 command · else the command's.
"""


def colours_on(stream: IO[str]) -> bool:
    """Whether the stream is a terminal that wants colours."""
    import os

    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def help_page(stream: IO[str]) -> str:
    """What `dibs --help` prints: within 80 columns, in colours where the stream shows them."""
    bold, name, dim, end = ("\033[1m", "\033[36m", "\033[2m", "\033[0m") if colours_on(stream) else ("",) * 4
    lines = [f"  {words:<41}  {dim}{meaning}{end}" for words, meaning in _EXAMPLES]
    sections = [(title, [(verb, about) for verb, (_, about) in verbs.items()]) for title, verbs in SECTIONS.items()]
    for title, entries in [*sections, ("Options", list(_OPTIONS))]:
        lines += ["", f"{bold}{title}:{end}", *(f"  {name}{word:<13}{end}  {about}" for word, about in entries)]
    return _INTRODUCTION + "\n".join(lines) + "\n" + _CLOSING
