"""The protobuf schema of HLO modules and buffer assignments: the subset that is read here.

Field numbers are those of XLA's `xla/service/hlo.proto` and `xla/xla_data.proto`, checked against
modules that jaxlib 0.10.2 serialises. The messages live in a descriptor pool and package of their
own, so they cannot clash with another copy of XLA's; fields left out here survive parsing and
serialising as unknown fields. Enums are declared int32: the wire form is the same, and values that
a newer XLA adds are kept as numbers.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "tpu_perf.hlo"

_SCALARS = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
}

#: Message -> "field number type"; "*" before a type repeats it, a capital names a message, and
#: "string->X" is a map. Nested messages of XLA stand here by names of their own: on the wire only
#: numbers count.
_MESSAGES: dict[str, str] = {
    "HloProto": "hlo_module 1 HloModuleProto, buffer_assignment 3 BufferAssignmentProto",
    "HloModuleProto": """
        name 1 string, entry_computation_name 2 string, computations 3 *HloComputationProto,
        id 5 int64, entry_computation_id 6 int64, schedule 7 HloScheduleProto,
        input_output_alias 8 HloInputOutputAliasProto, stack_frame_index 17 StackFrameIndexProto,
        frontend_attributes 19 FrontendAttributes""",
    "HloComputationProto": """
        name 1 string, instructions 2 *HloInstructionProto, id 5 int64, root_id 6 int64,
        is_fusion_computation 7 bool, execution_thread 8 string""",
    "HloInstructionProto": """
        name 1 string, opcode 2 string, shape 3 ShapeProto, metadata 7 OpMetadata,
        literal 8 LiteralProto, parameter_number 9 int64, fusion_kind 11 string,
        tuple_index 13 int64, dimensions 14 *int64, window 15 Window,
        convolution_dimension_numbers 16 ConvolutionDimensionNumbers,
        slice_dimensions 17 *SliceDimensions, dynamic_slice_sizes 20 *int64,
        padding_config 21 PaddingConfig, channel_id 26 int64, custom_call_target 28 string,
        dot_dimension_numbers 30 DotDimensionNumbers, fft_type 31 int32, fft_length 32 *int64,
        gather_dimension_numbers 33 GatherDimensionNumbers, gather_slice_sizes 34 *int64,
        id 35 int64, operand_ids 36 *int64, control_predecessor_ids 37 *int64,
        called_computation_ids 38 *int64, backend_config 43 bytes,
        scatter_dimension_numbers 48 ScatterDimensionNumbers, feature_group_count 50 int64,
        batch_group_count 58 int64, is_stable 60 bool, comparison_direction 63 string,
        replica_groups 49 *ReplicaGroup, source_target_pairs 52 *SourceTarget,
        indices_are_sorted 67 bool, frontend_attributes 68 FrontendAttributes,
        unique_indices 69 bool, output_operand_aliasing 74 *OutputOperandAliasing,
        async_execution_thread 79 string, collective_device_list 87 CollectiveDeviceList,
        iota_replica_group_list 92 IotaReplicaGroupList,
        mesh_axes_replica_group_list 93 MeshAxesReplicaGroupList""",
    "ReplicaGroup": "replica_ids 1 *int64",
    "SourceTarget": "source 1 int64, target 2 int64",
    "CollectiveDeviceList": """
        replica_groups 1 *ReplicaGroup, iota_replica_group_list 2 IotaReplicaGroupList""",
    "IotaReplicaGroupList": """
        num_replica_groups 1 int64, num_devices_per_group 2 int64, iota_reshape_dims 3 *int64,
        iota_transpose_perm 4 *int32""",
    "MeshAxesReplicaGroupList": "mesh 1 DeviceMesh, axes 2 *MeshAxisReference",
    "DeviceMesh": "axes 1 *MeshAxis, device_ids 2 *int64, iota 3 IotaTiles",
    "IotaTiles": "reshape_dims 1 *int64, transpose_perm 2 *int32",
    "MeshAxis": "name 1 string, size 2 int64",
    "MeshAxisReference": "mesh_axis_index 1 int64, sub_axis_info 2 SubAxis",
    "SubAxis": "pre_size 1 int64, size 2 int64",
    "HloScheduleProto": "sequences 1 int64->InstructionSequence",
    "InstructionSequence": "instruction_ids 1 *int64",
    "HloInputOutputAliasProto": "entries 1 *AliasEntry",
    "AliasEntry": """
        output_shape_index 1 *int64, parameter_number 2 int64, parameter_shape_index 3 *int64,
        kind 4 int32""",
    "OutputOperandAliasing": """
        output_shape_index 1 *int64, operand_index 2 int64, operand_shape_index 3 *int64""",
    "StackFrameIndexProto": """
        file_names 1 *string, function_names 2 *string, file_locations 3 *FileLocation,
        stack_frames 4 *StackFrame""",
    "FileLocation": "file_name_id 1 int32, function_name_id 2 int32, line 3 int32, column 4 int32",
    "StackFrame": "file_location_id 1 int32, parent_frame_id 2 int32",
    "FrontendAttributes": "map 1 string->string",
    "OpMetadata": """
        op_type 1 string, op_name 2 string, source_file 3 string, source_line 4 int32,
        deduplicated_name 12 string, stack_frame_id 15 int32""",
    "ShapeProto": """
        element_type 2 int32, dimensions 3 *int64, tuple_shapes 4 *ShapeProto, layout 5 LayoutProto,
        is_dynamic_dimension 6 *bool""",
    "LayoutProto": """
        minor_to_major 1 *int64, tiles 6 *TileProto, element_size_in_bits 7 int64,
        memory_space 8 int64, tail_padding_alignment_in_elements 16 int64""",
    "TileProto": "dimensions 1 *int64",
    "LiteralProto": """
        shape 1 ShapeProto, preds 2 *bool, u8s 3 bytes, s32s 4 *int32, s64s 5 *int64,
        u32s 6 *uint32, u64s 7 *uint64, f32s 8 *float, f64s 9 *double, s8s 15 bytes,
        u16s 16 bytes, s16s 17 bytes""",
    "Window": "dimensions 1 *WindowDimension",
    "WindowDimension": """
        size 1 int64, stride 2 int64, padding_low 3 int64, padding_high 4 int64,
        window_dilation 5 int64, base_dilation 6 int64, window_reversal 7 bool""",
    "ConvolutionDimensionNumbers": """
        kernel_input_feature_dimension 3 int64, kernel_output_feature_dimension 4 int64,
        kernel_spatial_dimensions 6 *int64, input_batch_dimension 7 int64,
        input_feature_dimension 8 int64, output_batch_dimension 9 int64,
        output_feature_dimension 10 int64, input_spatial_dimensions 11 *int64,
        output_spatial_dimensions 12 *int64""",
    "DotDimensionNumbers": """
        lhs_contracting_dimensions 1 *int64, rhs_contracting_dimensions 2 *int64,
        lhs_batch_dimensions 3 *int64, rhs_batch_dimensions 4 *int64""",
    "GatherDimensionNumbers": """
        offset_dims 1 *int64, collapsed_slice_dims 2 *int64, start_index_map 3 *int64,
        index_vector_dim 4 int64, operand_batching_dims 5 *int64,
        start_indices_batching_dims 6 *int64""",
    "ScatterDimensionNumbers": """
        update_window_dims 1 *int64, inserted_window_dims 2 *int64,
        scatter_dims_to_operand_dims 3 *int64, index_vector_dim 4 int64,
        input_batching_dims 5 *int64, scatter_indices_batching_dims 6 *int64""",
    "SliceDimensions": "start 1 int64, limit 2 int64, stride 3 int64",
    "PaddingConfig": "dimensions 1 *PaddingConfigDimension",
    "PaddingConfigDimension": """
        edge_padding_low 1 int64, edge_padding_high 2 int64, interior_padding 3 int64""",
    "BufferAssignmentProto": """
        logical_buffers 1 *LogicalBufferProto, buffer_aliases 2 *BufferAlias,
        buffer_allocations 3 *BufferAllocationProto, heap_simulator_traces 4 *HeapSimulatorTrace""",
    "LogicalBufferProto": "id 1 int64, size 2 int64, defined_at 3 BufferLocation, color 4 int64",
    "BufferLocation": "instruction_name 2 string, shape_index 3 *int64, instruction_id 4 int64",
    "BufferAlias": "source_buffer_id 1 int64, location 2 BufferLocation",
    "BufferAllocationProto": """
        index 1 int64, size 2 int64, is_thread_local 3 bool, is_entry_computation_parameter 5 bool,
        parameter_number 6 int64, maybe_live_out 7 bool, color 8 int64, assigned 9 *Assigned,
        parameter_shape_index 10 *int64, is_tuple 11 bool, is_constant 12 bool""",
    "Assigned": "logical_buffer_id 1 int64, offset 2 int64, size 3 int64",
    "HeapSimulatorTrace": """
        events 1 *HeapEvent, whole_module_simulation 2 bool, buffer_allocation_index 3 int64""",
    "HeapEvent": """
        kind 1 int32, buffer_id 2 int64, computation_name 3 string, instruction_name 4 string,
        share_with_canonical_id 5 int64""",
}

#: HeapEvent.kind.
ALLOC, FREE, SHARE_WITH = 0, 1, 2


def _set_type(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"


def _add_map_entry(message: descriptor_pb2.DescriptorProto, name: str, key: str, value: str) -> str:
    """A map on the wire is a repeated message of key and value; returns that message's name."""
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    for number, (field_name, kind) in enumerate((("key", key), ("value", value)), start=1):
        field = entry.field.add(name=field_name, number=number, label=1)
        _set_type(field, kind)
    return f"{message.name}.{entry.name}"


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="tpu_perf/hlo/hlo_subset.proto", package=PACKAGE, syntax="proto3"
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for declaration in fields.split(","):
            name, number, kind = declaration.split()
            repeated = kind.startswith("*") or "->" in kind
            field = message.field.add(name=name, number=int(number), label=3 if repeated else 1)
            if "->" in kind:
                key, value = kind.split("->")
                kind = _add_map_entry(message, name, key, value)
            _set_type(field, kind.removeprefix("*"))
    return file


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


MESSAGES = _classes()
HloProto: Any = MESSAGES["HloProto"]
HloModuleProto: Any = MESSAGES["HloModuleProto"]
