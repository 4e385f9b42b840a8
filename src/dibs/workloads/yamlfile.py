"""YAML as people write it by hand: a key that stands twice in one mapping is an error, not a choice of the last one."""

from __future__ import annotations

from typing import Any

import yaml


class StrictLoader(yaml.SafeLoader):
    """The safe loader, without silent overwriting."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key_node.value!r} stands twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def load_one(text: bytes) -> Any:
    """The one document of a file. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=StrictLoader)  # noqa: S506 - a SafeLoader


def load_all(text: bytes) -> list[Any]:
    """All documents of a file that say something."""
    return [document for document in yaml.load_all(text, Loader=StrictLoader) if document is not None]
