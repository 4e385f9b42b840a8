"""Protobuf messages from a short text, in a descriptor pool of their own.

A wire contract needs names and field numbers, and no generated code. A pool of our own lets the makers' modules be
loaded in the same process. `gateway/openshell/schema.py` and `node/wire.py` describe their messages with it. It must be
imported only where gRPC is served: protobuf takes a while to load.

    message NAME
        TYPE name number    *TYPE: repeated    ?TYPE: presence is told    name|group: a oneof
        map name number     string to string    map:TYPE: string to TYPE
    enum NAME VALUE...
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, struct_pb2, timestamp_pb2

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "bool": _Field.TYPE_BOOL, "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64, "uint32": _Field.TYPE_UINT32, "uint64": _Field.TYPE_UINT64,
}  # fmt: skip
_WELL_KNOWN = {"Struct": struct_pb2, "Timestamp": timestamp_pb2, "Duration": duration_pb2}


class Messages:
    """The messages and enums of one package."""

    def __init__(self, package: str, text: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        for module in _WELL_KNOWN.values():
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        pool.AddSerializedFile(_described(package, text).SerializeToString())
        file = pool.FindFileByName(_file_name(package))
        self.classes: dict[str, Any] = {
            name: message_factory.GetMessageClass(found) for name, found in file.message_types_by_name.items()
        }
        self.values: dict[str, int] = {
            value.name: value.number for enum in file.enum_types_by_name.values() for value in enum.values
        }


def _file_name(package: str) -> str:
    return f"dibs/{package}.proto"


def _described(package: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=_file_name(package), package=package, syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in _WELL_KNOWN.values())
    lines = [line for line in text.splitlines() if line.strip()]
    enums = {line.split()[1] for line in lines if line.startswith("enum ")}
    for line in lines:
        kind, *words = line.split()
        if kind == "enum":
            _add_enum(file, words[0], words[1:])
        elif kind == "message":
            message = file.message_type.add(name=words[0])
        else:
            _add_field(package, message, kind, words[0], int(words[1]), enums)
    for message in file.message_type:
        _after_real_groups(message)
    return file


def _add_enum(file: descriptor_pb2.FileDescriptorProto, name: str, values: list[str]) -> None:
    prefix = "".join(f"_{letter}" if letter.isupper() else letter for letter in name)[1:].upper()
    enum = file.enum_type.add(name=name)
    for number, value in enumerate(values):
        enum.value.add(name=f"{prefix}_{value}", number=number)


def _add_field(package: str, message: Any, kind: str, name: str, number: int, enums: set[str]) -> None:
    name, _, group = name.partition("|")
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("*"):
        kind, field.label = kind[1:], _Field.LABEL_REPEATED
    elif kind.startswith("?"):
        kind, field.proto3_optional = kind[1:], True
    if kind.partition(":")[0] == "map":
        _make_map(package, message, field, kind.partition(":")[2] or "string")
    else:
        _set_type(package, field, kind, enums)
    if group:
        names = [one.name for one in message.oneof_decl]
        if group not in names:
            message.oneof_decl.add(name=group)
            names.append(group)
        field.oneof_index = names.index(group)


def _set_type(package: str, field: Any, kind: str, enums: set[str]) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind in enums:
        field.type, field.type_name = _Field.TYPE_ENUM, f".{package}.{kind}"
    elif kind in _WELL_KNOWN:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".google.protobuf.{kind}"
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"


def _make_map(package: str, message: Any, field: Any, value: str) -> None:
    entry = message.nested_type.add(name="".join(word.capitalize() for word in field.name.split("_")) + "Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    _set_type(package, entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), value, set())
    field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
    field.type_name = f".{package}.{message.name}.{entry.name}"


def _after_real_groups(message: Any) -> None:
    """A field whose presence is told is a oneof of its own; those come behind the real ones."""
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
