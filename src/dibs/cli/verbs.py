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
        "run": ("dibs.cli.run", "Run a command with GPUs, in a sandbox of its own."),
        "sandbox": ("dibs.cli.sandbox", "Make, use and remove sandboxes that stay."),
        "ps": ("dibs.cli.sandbox:ls", "List the sandboxes (sandbox ls)."),
        "exec": ("dibs.cli.sandbox:exec_", "Run one more command in a sandbox."),
        "logs": ("dibs.cli.sandbox:logs", "The output of a sandbox."),
        "cp": ("dibs.cli.sandbox:cp", "Copy files into a sandbox or out of it."),
        "wait": ("dibs.cli.sandbox:wait", "Wait until sandboxes have ended."),
        "stop": ("dibs.cli.sandbox:stop", "Stop a sandbox; its log and receipt stay."),
        "rm": ("dibs.cli.sandbox:rm", "Stop sandboxes and remove their files."),
    },
    "See": {
        "gpus": ("dibs.cli.gpus", "The GPUs of this host, and who holds them."),
        "leases": ("dibs.cli.leases", "What is held, and who waits for it."),
        "queue": ("dibs.cli.queue", "The queue: who waits for GPUs; remove a ticket."),
        "explain": ("dibs.cli.explain", "What would happen to a request, and why. Creates nothing."),
        "receipt": ("dibs.cli.receipt", "The proof of what a sandbox was given."),
        "claims": ("dibs.cli.claims", "Device claims: check them, solve them, keep them."),
        "train": ("dibs.cli.train", "Training jobs of several nodes: run, follow, explain."),
    },
    "Serve": {
        "serve": ("dibs.cli.serve", "Serve sandboxes over HTTP, to dibs and OpenSandbox clients."),
        "token": ("dibs.cli.token", "Who may call a gateway: make, list and revoke tokens."),
        "host": ("dibs.cli.host", "One service for all users of this machine."),
        "context": ("dibs.cli.context", "Gateways by name, and which of them is used."),
        "node": ("dibs.cli.node", "Offer this node's devices to Kubernetes: DRA or device plugin."),
        "webhook": ("dibs.cli.webhook", "Judge TrainJobs when a cluster admits them."),
    },
    "Look after": {
        "doctor": ("dibs.cli.doctor", "Examine this host; every finding comes with its fix."),
        "cdi": ("dibs.cli.cdi", "The CDI specs of this host: read, check, inject."),
        "table": ("dibs.cli.table", "What is delivered and what is refused, field by field."),
        "schema": ("dibs.cli.schema", "The JSON schema of what a command prints with -o json."),
        "completion": ("dibs.cli.completion", "Completion for bash, zsh or fish."),
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
