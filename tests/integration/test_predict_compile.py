"""Compiling for TPUs without one: what comes of good programs, and of every kind of bad one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tpu_perf.hlo.memory import memory_profile
from tpu_perf.hlo.module import read_module
from tpu_perf.predict.compile_cache import CompileCache, key_of
from tpu_perf.predict.compiled import Compiled, NotCompiled, Request, pack, unpack
from tpu_perf.predict.compiler import Compiler, Limits
from tpu_perf.predict.flops_check import PredictionRefused, check_flops
from tpu_perf.predict.libtpu import ENVIRONMENT
from tpu_perf.predict.prediction import predict_program
from tpu_perf.predict.targets import find_target

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
    ),
    pytest.mark.usefixtures("narrow_numbers"),
]
VMEM = "--xla_tpu_scoped_vmem_limit_kib=65536"


def lowered(function: Callable[..., Any], *arrays: jax.ShapeDtypeStruct) -> bytes:
    found = jax.jit(function).trace(*arrays).lower(lowering_platforms=("tpu",))
    return str(found.compiler_ir("stablehlo")).encode()


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def request(program: bytes, **changes: Any) -> Request:
    return Request(**{"name": "program", "stablehlo": program, "target": find_target("v6e-1"),
                      **changes})  # fmt: skip


SMALL = (256, 512, 128)


def matmul() -> bytes:
    return lowered(jnp.matmul, bf16(256, 512), bf16(512, 128))


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler(Limits(seconds=300)) as made:
        yield made


def compiled(compiler: Compiler, program: bytes, **changes: Any) -> Compiled:
    outcome = compiler.compile(request(program, **changes))
    assert isinstance(outcome, Compiled), outcome
    return outcome


def test_flops_and_memory_are_those_known_by_hand(compiler: Compiler) -> None:
    found = compiled(compiler, matmul())
    m, k, n = SMALL
    assert check_flops(found, 2 * m * k * n).flops == 2 * m * k * n
    profile = memory_profile(read_module(found.hlo))
    assert profile is not None
    assert profile.argument_bytes == 2 * (m * k + k * n)
    assert profile.output_bytes == 2 * m * n
    assert found.memory_bytes["output_size_in_bytes"] == 2 * m * n


def test_loops_count_every_trip(compiler: Compiler) -> None:
    def layers(x: Any, weights: Any) -> Any:
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    found = compiled(compiler, lowered(layers, bf16(64, 256), bf16(7, 256, 256)))
    assert check_flops(found).flops == 7 * 2 * 64 * 256 * 256


def test_a_prediction_refuses_itself_where_flops_differ(compiler: Compiler) -> None:
    found = compiled(compiler, matmul())
    m, k, n = SMALL
    with pytest.raises(PredictionRefused, match=r"\+2\.0%"):
        predict_program(found, analytic_flops=2 * m * k * n / 1.02)
    assert predict_program(found, analytic_flops=2 * m * k * n / 1.005).matmul_flops


def test_a_copy_takes_its_bytes(compiler: Compiler) -> None:
    found = compiled(compiler, lowered(lambda a: a.copy(), bf16(2**22)))
    predicted = predict_program(found)
    assert predicted.timeline.hbm_bytes == 2 * 2 * 2**22
    assert predicted.timeline.busy_s["hbm"] == pytest.approx(predicted.seconds)
    # More than the chip's bandwidth allows would be a lie.
    assert predicted.seconds > 2 * 2 * 2**22 / 1640e9


def test_matmuls_stay_below_the_peak(compiler: Compiler) -> None:
    found = predict_program(
        compiled(compiler, lowered(jnp.matmul, bf16(2048, 2048), bf16(2048, 2048)))
    )
    assert 0.3 < 2 * 2048**3 / 918e12 / found.seconds < 1
    assert any("xla_tpu_scoped_vmem_limit_kib" in one for one in found.assumptions)


def test_flags_reach_the_compiler_and_belong_to_the_key(compiler: Compiler) -> None:
    v5p = find_target("v5p:1x1x1")
    plain, flagged = (request(matmul(), target=v5p, init_args=one) for one in ("", VMEM))
    assert key_of(plain).key != key_of(flagged).key
    assert key_of(plain).key != key_of(request(matmul(), target=v5p, options={"a": 1})).key
    assert key_of(plain).key != key_of(request(matmul(), target=find_target("v5p-8"))).key

    def opcodes(wanted: Request) -> list[str]:
        outcome = compiler.compile(wanted)
        assert isinstance(outcome, Compiled)
        return [one.opcode for one in read_module(outcome.hlo).entry.instructions]

    # All of v5p's VMEM for the matmul leaves none to prefetch an operand into.
    assert "copy-start" in opcodes(plain)
    assert "copy-start" not in opcodes(flagged)


def test_what_does_not_fit_says_what_it_needs(compiler: Compiler) -> None:
    side = 70_000
    program = lowered(lambda a: (a.astype(jnp.float32) * 2, a + 1), bf16(side, side))
    outcome = compiler.compile(request(program))
    assert isinstance(outcome, NotCompiled)
    assert outcome.status == "does_not_fit"
    needed = float(outcome.reason.split("needs ")[1].split(" GiB")[0])
    assert needed == pytest.approx((2 + 4 + 2) * side**2 / 2**30, rel=0.15)
    assert "of 31.25, largest: " in outcome.reason
    assert "f32[70000,70000]" in outcome.reason


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stablehlo": b"this is no program"}, "not a StableHLO module"),
        ({"options": {"xla_no_such_option": True}}, "No such compile option"),
        ({"init_args": "--xla_no_such_flag=1"}, "Unknown command line flag"),
        ({"device_order": (0, 0)}, "1 devices, 2 were given"),
    ],
)
def test_bad_input_is_a_result(compiler: Compiler, changes: dict[str, Any], told: str) -> None:
    changes = dict(changes)
    program = changes.pop("stablehlo", None) or matmul()
    outcome = compiler.compile(request(program, **changes))
    assert isinstance(outcome, NotCompiled)
    assert outcome.status == "failed"
    assert told in outcome.reason
    assert isinstance(compiler.compile(request(matmul())), Compiled)  # the next one is well


def test_limits_are_results_and_are_not_kept(tmp_path: Path) -> None:
    program = lowered(jnp.sort, jax.ShapeDtypeStruct((2**20,), jnp.float32))
    with CompileCache(tmp_path, Limits(seconds=0.01)) as cache:
        (late,) = cache.compile_all([request(program)])
    with CompileCache(tmp_path, Limits(memory_bytes=2**20)) as cache:
        (large,) = cache.compile_all([request(program)])
    assert isinstance(late, NotCompiled)
    assert late.status == "timeout"
    assert isinstance(large, NotCompiled)
    assert large.status == "exhausted"
    assert not list(tmp_path.glob("*.program"))


def test_a_compiler_that_dies_is_a_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "libtpu.so"
    fake.write_bytes(b"no library")
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(fake))
    with Compiler(Limits(seconds=60)) as broken:
        outcome = broken.compile(request(matmul()))
    assert isinstance(outcome, NotCompiled)
    assert outcome.status == "failed"


def test_the_second_time_comes_from_disk(tmp_path: Path) -> None:
    told: list[str] = []
    wanted = [request(matmul(), name="first"), request(matmul(), name="again")]
    with CompileCache(tmp_path, told=lambda progress: told.append(str(progress))) as cache:
        first, again = cache.compile_all(wanted)
    assert told[0] == "[1/2] first: compiling"
    assert len(told) == 2  # equal programs are compiled once
    with CompileCache(tmp_path, Limits(seconds=0.0)) as cache:  # could not compile anything
        (kept, _) = cache.compile_all(wanted)
    assert isinstance(first, Compiled)
    assert isinstance(kept, Compiled)
    assert kept.from_cache
    assert not first.from_cache
    assert (kept.hlo, kept.memory_bytes) == (first.hlo, first.memory_bytes)
    assert isinstance(again, Compiled)


def test_damage_on_disk_is_compiled_again(tmp_path: Path) -> None:
    with CompileCache(tmp_path, Limits(seconds=120)) as cache:
        cache.compile_all([request(matmul())])
        (entry,) = tmp_path.glob("*.program")
        entry.write_bytes(entry.read_bytes()[:-40])
        (outcome,) = cache.compile_all([request(matmul())])
    assert isinstance(outcome, Compiled)
    assert not outcome.from_cache
    assert list(tmp_path.glob("*.bad"))


def test_outcomes_survive_packing(compiler: Compiler) -> None:
    found = compiled(compiler, matmul())
    back = unpack(pack(found), found.name, found.target)
    assert isinstance(back, Compiled)
    assert (back.hlo, back.compile_s, back.partitions) == (found.hlo, found.compile_s, 1)
    with pytest.raises(ValueError, match="not a compiled program"):
        unpack(pack(found)[:-1], found.name, found.target)


def test_coordinates_are_those_of_libtpu() -> None:
    names = ["v6e-8", "v6e-256", "v5p-32", "tpu7x:4x4x4", "2xv6e-16", "v4:2x2x4", "v5e-1"]
    script = (
        "import json, sys\n"
        "from tpu_perf.predict.libtpu import devices_of\n"
        "from tpu_perf.predict.targets import find_target\n"
        "found = {}\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    target = find_target(name)\n"
        "    found[name] = [[getattr(one, 'slice_index', 0), one.core_on_chip, *one.coords]\n"
        "        for one in devices_of(target.topology_name, target.topology_options)]\n"
        "print(json.dumps(found))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, json.dumps(names)],
        env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name, places in json.loads(ran.stdout.splitlines()[-1]).items():
        target = find_target(name)
        assert len(places) == target.devices
        rank = 2 + len(target.shape)
        assert [tuple(one[:rank]) for one in places] == [
            target.coordinates(at) for at in range(target.devices)
        ], name


def test_kernels_take_the_cycles_they_are_given(compiler: Compiler) -> None:
    from jax.experimental import pallas as pl

    def double(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    kernel = pl.pallas_call(
        double, out_shape=jax.ShapeDtypeStruct((256, 256), jnp.float32), name="double_it"
    )
    found = compiled(compiler, lowered(kernel, jax.ShapeDtypeStruct((256, 256), jnp.float32)))
    given = predict_program(found, kernel_cycles={"double_it": 1.75e6})
    assert given.timeline.work_s["cycles of one block times blocks"] == pytest.approx(1e-3)
    unknown = predict_program(found)
    assert any("unknown kernel" in one for one in unknown.assumptions)
    assert not any("unknown kernel" in one for one in given.assumptions)


def test_windowed_matmuls_over_eight_devices_count_once(compiler: Compiler) -> None:
    """Sharded weights are gathered piece by piece in loops that XLA unrolls by two."""
    script = (
        "import sys, jax, jax.numpy as jnp, numpy as np\n"
        "from jax.sharding import Mesh, NamedSharding, PartitionSpec as P\n"
        "from tpu_perf.predict.libtpu import devices_of\n"
        "mesh = Mesh(np.array(devices_of('v6e:2x4', {})), ('d',))\n"
        "def array(shape, spec):\n"
        "    sharding = NamedSharding(mesh, spec)\n"
        "    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)\n"
        "x, w = array((4096, 1024), P('d', None)), array((1024, 2048), P('d', None))\n"
        "out = NamedSharding(mesh, P('d', None))\n"
        "traced = jax.jit(jnp.matmul, out_shardings=out).trace(x, w)\n"
        "print(traced.lower(lowering_platforms=('tpu',)).compiler_ir('stablehlo'))\n"
    )
    program = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **ENVIRONMENT}, capture_output=True, check=True,
    ).stdout  # fmt: skip
    program = program[program.index(b"module @") :]
    found = compiled(compiler, program, target=find_target("v6e-8"))
    assert found.partitions == 8
    assert check_flops(found).flops == 2 * 4096 * 1024 * 2048 / 8
    predicted = predict_program(found)
    sent = sum(predicted.timeline.queue_s.get(one, 0.0) for one in ("ici", "ici back"))
    assert sent > 7 / 8 * 2 * 1024 * 2048 / (4 * 90e9)
