"""Engine `torch_tpu`: Google's TorchTPU. Its wheel is loaded only in a worker of its own."""

from tpu_perf.engines.interface import ENGINES
from tpu_perf.engines.torch_tpu.engine import TorchTpuEngine

ENGINES.add("torch_tpu", TorchTpuEngine())
