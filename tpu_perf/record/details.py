"""Tables that say what events are about: sites, calls, ops of programs, HLO instructions, buffers.

They lie beside the event tables of a run. A run recorded without details lacks them, and reading
gives empty frames: an unknown site is unknown, not a row of zeros.
"""

from __future__ import annotations

from tpu_perf.record.events import ColumnType

Columns = tuple[tuple[str, ColumnType], ...]

#: sites.parquet: where in the user's program an op came from. `file`, `line` and `function` are
#: the innermost frame that is neither torch's nor ours (in a backward pass that of the forward op);
#: `module` is the path from the root module ("" outside any), `module_class` its class.
#: `phase`: forward | backward | optimizer | other. `stack` holds the user's frames, innermost
#: first, as "file:line function" joined by newlines.
SITE_COLUMNS: Columns = (
    ("site", "int32"),
    ("file", "string"),
    ("line", "int32"),
    ("function", "string"),
    ("module", "string"),
    ("module_class", "string"),
    ("phase", "string"),
    ("stack", "string"),
)

#: calls.parquet: an aten op on arguments of one geometry. `arguments` and `results` are JSON: a
#: list with one entry an argument in schema order; a tensor is {"dtype": "float32", "shape":
#: [2, 3]}, a list of tensors a list of those, everything else its JSON value or its repr; `names`
#: the argument names. Bytes are those of the buffers the op reads and writes.
CALL_COLUMNS: Columns = (
    ("call", "int32"),
    ("op", "string"),  # aten::add.Tensor
    ("names", "string"),
    ("arguments", "string"),
    ("results", "string"),
    ("bytes_in", "int64"),
    ("bytes_out", "int64"),
)

#: program_ops.parquet: the aten ops a program computes, in order. `site` is that of the recording
#: that first built the program; `call` -1 where the op's arguments are not known.
PROGRAM_OP_COLUMNS: Columns = (
    ("program", "int32"),
    ("position", "int32"),
    ("op", "string"),
    ("call", "int32"),
    ("site", "int32"),
)

#: instructions.parquet: scheduled HLO instructions of a program, those inside loops and called
#: computations included, fusions whole. FLOPs and bytes are of one execution of the instruction,
#: `trip_count` how often one execution of the program runs it; null where not known.
#: `positions` is a JSON list: the ops (positions in program_ops) that the instruction computes.
INSTRUCTION_COLUMNS: Columns = (
    ("program", "int32"),
    ("instruction", "string"),
    ("opcode", "string"),
    ("category", "string"),
    ("computation", "string"),
    ("positions", "string"),
    ("flops", "float64"),
    ("bytes_read", "float64"),
    ("bytes_written", "float64"),
    ("trip_count", "float64"),
    ("shape", "string"),
    ("text", "string"),
)

#: buffer_labels.parquet: what a live buffer was found to be at a moment. `category`: parameter |
#: gradient | optimizer_state | model_buffer | input.
BUFFER_LABEL_COLUMNS: Columns = (
    ("t_ns", "int64"),
    ("buffer", "int64"),
    ("category", "string"),
    ("name", "string"),
    ("nbytes", "int64"),
)

#: collectives.parquet: what a program over a mesh moves between devices, one row an instruction of
#: its compiled HLO; `hlo.collectives.Collective` says what the columns mean.
COLLECTIVE_COLUMNS: Columns = (
    ("program", "int32"),
    ("instruction", "string"),
    ("kind", "string"),  # all-reduce | all-gather | reduce-scatter | all-to-all | ...
    ("axes", "string"),
    ("group_size", "int32"),
    ("bytes", "float64"),
    ("sent_bytes", "float64"),
    ("role", "string"),
    ("tensor", "string"),
    ("done", "string"),
    ("trip_count", "float64"),
)

#: placements.parquet: how the state of a job lies on its mesh. `category`: parameter |
#: optimizer_state. `split` names the axes of each dimension ("fsdp, -"); `parts` is the number of
#: different pieces, so that devices / parts hold the same.
PLACEMENT_COLUMNS: Columns = (
    ("name", "string"),
    ("category", "string"),
    ("shape", "string"),
    ("split", "string"),
    ("bytes", "int64"),
    ("parts", "int32"),
    ("devices", "int32"),
)

DETAIL_TABLES: dict[str, Columns] = {
    "sites": SITE_COLUMNS,
    "calls": CALL_COLUMNS,
    "program_ops": PROGRAM_OP_COLUMNS,
    "instructions": INSTRUCTION_COLUMNS,
    "buffer_labels": BUFFER_LABEL_COLUMNS,
    "collectives": COLLECTIVE_COLUMNS,
    "placements": PLACEMENT_COLUMNS,
}

#: Below programs/<first 32 digits of the key>/ of a run lie `stablehlo.mlir.zst`, `cost.json` and,
#: in runs with details, `hlo.pb.zst`: an HloProto of the optimised module, with its buffer
#: assignment where `cost.json` says `"buffer_assignment": true`.
HLO_FILE = "hlo.pb.zst"
#: Digits of a program's key that name its directory.
KEY_DIGITS = 32
