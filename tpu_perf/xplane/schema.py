"""The protobuf schema of XPlane files, for the exporter and the importer alike.

No package ships these message classes without TensorFlow, so they are described here. Field
numbers are those of `tsl/profiler/protobuf/xplane.proto` and, for the last ones, of the files named
beside them in XLA and xprof. The messages live in a descriptor pool and a package of
their own and cannot clash with another copy; fields left out here survive as unknown fields.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

PACKAGE = "tpu_perf.xplane"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
}

#: Message -> "name number type, ...". "*" repeats a type, "->" is a map from int64, "|" puts the
#: field into the message's oneof, and a type that is no scalar is another message.
_MESSAGES: dict[str, str] = {
    "XSpace": "planes 1 *XPlane, errors 2 *string, warnings 3 *string, hostnames 4 *string",
    "XPlane": """id 1 int64, name 2 string, lines 3 *XLine, event_metadata 4 ->XEventMetadata,
        stat_metadata 5 ->XStatMetadata, stats 6 *XStat""",
    "XLine": """id 1 int64, name 2 string, timestamp_ns 3 int64, events 4 *XEvent,
        duration_ps 9 int64, display_id 10 int64, display_name 11 string""",
    "XEvent": """metadata_id 1 int64, offset_ps 2 |int64, duration_ps 3 int64, stats 4 *XStat,
        num_occurrences 5 |int64""",
    "XStat": """metadata_id 1 int64, double_value 2 |double, uint64_value 3 |uint64,
        int64_value 4 |int64, str_value 5 |string, bytes_value 6 |bytes, ref_value 7 |uint64""",
    "XEventMetadata": """id 1 int64, name 2 string, metadata 3 bytes, display_name 4 string,
        stats 5 *XStat, child_id 6 *int64""",
    "XStatMetadata": "id 1 int64, name 2 string, description 3 string",
    # hlo.proto: only what names a module.
    "HloProto": "hlo_module 1 HloModuleProto",
    "HloModuleProto": "name 1 string",
    # op_metrics.proto; operation_type: 1 read, 2 write; memory_space: 1 HBM, 2 CMEM, 3 VMEM.
    "MemoryAccessed": "operation_type 1 int32, memory_space 2 uint64, bytes_accessed 3 uint64",
    "MemoryAccessBreakdown": "memory_accessed 1 *MemoryAccessed",
    # op_stats.proto
    "CoreDetails": """hostname 1 string, device_ordinal 2 uint32, core_num 3 uint32,
        local_chip_id 4 uint32, global_chip_id 5 uint32, global_core_id 6 uint32,
        is_sparse_core 7 bool""",
}


def _describe(file: descriptor_pb2.FileDescriptorProto, name: str, fields: str) -> None:
    message = file.message_type.add(name=name)
    for field in fields.split(","):
        field_name, number, kind = field.split()
        added = message.field.add(name=field_name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if kind[0] == "|":
            if not message.oneof_decl:
                message.oneof_decl.add(name="value")
            added.oneof_index = 0
        if kind.startswith(("*", "->")):
            added.label = _Field.LABEL_REPEATED
        bare = kind.lstrip("*|->")
        if kind.startswith("->"):
            entry = message.nested_type.add(name=f"{field_name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            _map_field(entry, "key", 1, "int64")
            _map_field(entry, "value", 2, bare)
            added.type = _Field.TYPE_MESSAGE
            added.type_name = f".{PACKAGE}.{name}.{entry.name}"
        else:
            _set_type(added, bare)


def _map_field(entry: Any, name: str, number: int, kind: str) -> None:
    _set_type(entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL), kind)


def _set_type(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="tpu_perf/xplane.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        _describe(file, name, fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _classes()
XSpace: Any = _CLASSES["XSpace"]
XPlane: Any = _CLASSES["XPlane"]
XLine: Any = _CLASSES["XLine"]
XEvent: Any = _CLASSES["XEvent"]
XStat: Any = _CLASSES["XStat"]
XEventMetadata: Any = _CLASSES["XEventMetadata"]
XStatMetadata: Any = _CLASSES["XStatMetadata"]
HloProto: Any = _CLASSES["HloProto"]
MemoryAccessBreakdown: Any = _CLASSES["MemoryAccessBreakdown"]
CoreDetails: Any = _CLASSES["CoreDetails"]

READ, WRITE = 1, 2  # MemoryAccessed.operation_type
HBM = 1  # MemoryAccessed.memory_space


def parse_space(data: bytes) -> Any:
    """The XSpace in `data`. Raises ValueError where the bytes are not one."""
    space = XSpace()
    try:
        space.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"not an XPlane file, or a truncated one: {error}") from None
    return space


def decode(message: Any, data: object) -> Any:
    """A message from the bytes of a stat; None where they are absent or damaged."""
    if not isinstance(data, bytes):
        return None
    out = message()
    try:
        out.ParseFromString(data)
    except DecodeError:
        return None
    return out
