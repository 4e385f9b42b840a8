"""torchtune under a torch runtime: which recipe and configuration a `tune run` command gets, and what it may not say.

`policies` calls it when the command of a TrainJob is exactly `tune run`. The tables are Kubeflow Trainer's.
"""

from __future__ import annotations

from typing import Any, Final

from dibs.train.refusals import Refusals

Json = dict[str, Any]

ENTRYPOINT: Final = ["tune", "run"]
MODELS: Final = ("llama3_2/1B", "llama3_2/3B", "llama3_3/70B", "qwen2_5/1.5B")
MANAGED: Final = ("output_dir", "tokenizer.path", "checkpointer.checkpoint_dir", "tokenizer.merges_file")
_SMALL: Final = ("llama3_2/1B", "llama3_2/3B")
_LORA: Final = "model.lora_attn_modules"


def is_used(trainer: Json) -> bool:
    return bool(trainer.get("command") == ENTRYPOINT)


def model_of(runtime: str) -> str:
    """The model that a runtime's name says: torchtune-llama3.2-1b is llama3_2/1B."""
    parts = runtime.split("-")
    return f"{parts[1].replace('.', '_')}/{parts[2].upper()}" if len(parts) == 3 else ""


def recipe_of(runtime: str, nodes: int, processes: int, args: list[str]) -> tuple[str, str]:
    """Recipe and configuration."""
    qlora, lora = _is_qlora(args), _is_lora(args)
    model = model_of(runtime)
    if nodes > 1:
        return "full_finetune_distributed", f"{model}_full_multinode"
    single = processes == 1
    kind = "lora" if qlora or lora else "full"
    suffix = "_qlora" if qlora else "_lora" if lora else "_full"
    if single:
        return f"{kind}_finetune_single_device", f"{model}{suffix}_single_device"
    return f"{kind}_finetune_distributed", f"{model}{suffix}"


def managed_words(command: list[str]) -> list[str]:
    """What a runtime's command lays down for every job."""
    return [word for word in command if word.partition("=")[0] in MANAGED]


def command_of(
    runtime: str, managed: list[str], address: str, nodes: int, processes: int, args: list[str]
) -> list[str]:
    """The whole command: rendezvous where several take part, the recipe, and what the runtime lays down."""
    rendezvous = [f"--rdzv_endpoint={address}"] if nodes > 1 or processes > 1 else []
    recipe, config = recipe_of(runtime, nodes, processes, args)
    return [*ENTRYPOINT, *rendezvous, recipe, "--config", config, *managed]


def check(job: Json, processes: int, found: Refusals) -> None:
    trainer, runtime = job["spec"]["trainer"], job["spec"]["runtimeRef"]["name"]
    args, nodes, model = trainer.get("args", []), trainer.get("numNodes", 1), model_of(runtime)
    name = "spec.runtimeRef.name"
    if model not in MODELS:
        text = f"must have a supported pretrained model, invalid model configured: {model}"
        found.invalid(name, runtime, text, f"the models are {', '.join(MODELS)}")
    if nodes > 1 and model != "llama3_3/70B":
        found.invalid("spec.trainer.numNodes", nodes, f"must be 1 for {model} model")
    config = recipe_of(runtime, nodes, processes, args)[1]
    if "_qlora" in config:
        if model == "qwen2_5/1.5B":
            found.invalid(name, runtime, f"QLoRA is not supported for {model} model")
        if "_qlora_single_device" not in config and model in _SMALL:
            text = f"must be auto or 1 for {model} model when using QLoRA"
            found.invalid("spec.trainer.numProcPerNode", trainer.get("numProcPerNode", "auto"), text)
            text = f"must have gpu resource with value 1 for {model} model when using QLoRA"
            found.invalid("spec.trainer.resourcesPerNode", trainer.get("resourcesPerNode"), text)
    if nodes > 1 and (_is_lora(args) or _is_qlora(args)):
        text = "LoRA fine-tuning is not supported for multi-node training in TorchTune"
        found.invalid("spec.trainer.numNodes", nodes, text)
    for index, arg in enumerate(args):
        key = arg.partition("=")[0]
        if key in MANAGED:
            text = f'must not set immutable config "{key}" in trainer args; it is managed by the runtime'
            found.invalid(f"spec.trainer.args[{index}]", arg, text)


def _is_lora(args: list[str]) -> bool:
    return any(_LORA in arg for arg in args)


def _is_qlora(args: list[str]) -> bool:
    return not _is_on(args, "model.use_dora") and _is_on(args, "model.quantize_base")


def _is_on(args: list[str], item: str) -> bool:
    pairs = (arg.partition("=") for arg in args)
    return any(item in name and equals and text.strip().lower() == "true" for name, equals, text in pairs)
