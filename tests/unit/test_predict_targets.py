"""Names of TPU slices."""

from __future__ import annotations

import pytest

from tpu_perf.predict.generations import GENERATIONS
from tpu_perf.predict.targets import UnknownTarget, find_target


@pytest.mark.parametrize(
    ("name", "topology", "chips", "devices"),
    [  # as Google Cloud's pages count them
        ("v6e-1", "v6e:1x1", 1, 1),
        ("v6e-256", "v6e:16x16", 256, 256),
        ("v5litepod-8", "v5e:2x4", 8, 8),
        ("v5p-8", "v5p:2x2x1", 4, 4),
        ("v5p-1024", "v5p:8x8x8", 512, 512),
        ("v4-8", "v4:2x2x1", 4, 4),
        ("tpu7x:4x4x4", "tpu7x:4x4x4", 64, 128),
        ("2xv6e-256", "v6e:16x16", 512, 512),
        ("2xtpu7x:2x2x1", "tpu7x:2x2x1", 8, 16),
    ],
)
def test_names(name: str, topology: str, chips: int, devices: int) -> None:
    target = find_target(name)
    assert (target.topology_name, target.chips, target.devices) == (topology, chips, devices)
    assert name in str(target)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("v6e-3", "v6e-1, v6e-4, v6e-8"),
        ("v6e", "v6e-256"),
        ("v5p-2", "v5p-8, v5p-16"),
        ("v9-8", "v4, v5e, v5p, v6e, tpu7x"),
        ("v5e:16x32", "at most 16x16"),
        ("tpu7x:4x4", "3 axes, not 2"),
        ("tpu7x:3x4x4", "multiples of 4"),
        ("v6e:0x0", "multiples of 4"),
        ("0xv6e-8", "1 to 256"),
        ("v6e-8; rm", "for example v6e-1"),
    ],
)
def test_other_names_are_answered_with_what_there_is(name: str, told: str) -> None:
    with pytest.raises(UnknownTarget, match=told):
        find_target(name)


def test_every_size_has_as_many_chips_as_it_says_and_fits() -> None:
    for generation in GENERATIONS.values():
        for chips, shape in generation.sizes.items():
            product = 1
            for extent in shape:
                product *= extent
            assert product == chips
            torus = "x".join(map(str, shape))
            assert find_target(f"{generation.name}:{torus}").chips == chips


def test_peaks_and_clocks_agree() -> None:
    """FLOPs a cycle times the clock is the published peak, but for tpu7x, where it is libtpu's."""
    for generation in GENERATIONS.values():
        peak = generation.flops_per_cycle * generation.clock_hz
        expected = 996e12 if generation.name == "tpu7x" else generation.peak_flops_per_s
        assert peak == pytest.approx(expected, rel=0.01), generation.name
        assert set(generation.sources) == {
            "clock_hz", "usable_hbm_bytes", "ici_bytes_per_s", "ici_efficiency",
            "ici_latency_s", "host_bytes_per_s",
        }  # fmt: skip


def test_devices_of_a_chip_and_of_a_host_come_together() -> None:
    target = find_target("tpu7x:4x4x4")
    places = [target.coordinates(at) for at in range(target.devices)]
    assert len(set(places)) == 128
    assert places[:3] == [(0, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0)]
    assert {place[2:] for place in places[:8]} == {(x, y, 0) for x in (0, 1) for y in (0, 1)}
