"""Workloads of the user's own: every form they may take, and errors that name the user's line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from tpu_perf.errors import ConfigError, WorkloadError
from tpu_perf.ladder.plan import plan_ladder, read_ladder
from tpu_perf.record.plan import WorkloadPlan
from tpu_perf.workloads.interface import WORKLOADS, BuiltWorkload

HEAD = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nimport tpu_perf\n"


def build(tmp_path: Path, body: str, params: str = "{}", function: str = "make") -> BuiltWorkload:
    (tmp_path / "mine.py").write_text(HEAD + dedent(body))
    ladder = tmp_path / "ladder.yaml"
    ladder.write_text(
        "name: mine\nrungs: [cpu_eager]\n"
        f"workload: {{kind: python, function: './mine.py:{function}', params: {params}}}\n"
    )
    plan = plan_ladder(read_ladder(ladder))[0]
    return WORKLOADS.get("python").build(plan.workload, plan.seed)


MODEL = """
        model = torch.nn.Linear(4, 1)
        def loss(model, batch):
            return (model(batch["x"]) - batch["y"]).square().mean()
        def batches(i):
            g = torch.Generator().manual_seed(i)
            return {"x": torch.rand(8, 4, generator=g), "y": torch.rand(8, 1, generator=g)}
"""


@pytest.mark.parametrize(
    "returned",
    [
        "tpu_perf.Workload(model=model, batches=batches, loss=loss)",
        "{'model': model, 'batches': batches, 'loss': loss}",
        "(model, batches, loss)",
        "(model, [batches(0), batches(1)], loss)",
        "(model, (batches(i) for i in range(2)), loss)",
        "__import__('types').SimpleNamespace(model=model, batches=batches, loss=loss)",
    ],
)
def test_every_form_gives_the_same_job(tmp_path: Path, returned: str) -> None:
    workload = build(
        tmp_path, f"def make():{MODEL}\n        return {returned}\n".replace("        ", "    ")
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    assert torch.equal(model.weight, next(workload.module.parameters()))
    second = torch.Generator().manual_seed(1)
    x, y = torch.rand(8, 4, generator=second), torch.rand(8, 1, generator=second)
    expected = (model(x) - y).square().mean()
    for _ in range(2):
        loss = workload.loss(workload.module, workload.batch(1))
        assert torch.equal(loss, expected)
    assert workload.samples_per_step == 8


def test_a_shuffling_loader_gives_the_same_batches_to_everyone(tmp_path: Path) -> None:
    body = """
    def make(size):
        data = TensorDataset(torch.arange(size).float(), torch.arange(size))
        return {"model": torch.nn.Linear(1, 1), "batches": DataLoader(data, 4, shuffle=True)}
    """
    seen = []
    for draws_between in (False, True):
        workload = build(tmp_path, body, "{size: 12}")
        rows = []
        for index in range(7):
            rows.append(workload.batch(index))
            if draws_between:
                torch.rand(3)  # what dropout does
        seen.append([tuple(batch["item_1"].tolist()) for batch in rows])
    assert seen[0] == seen[1]
    assert sorted(sum(seen[0][:3], ())) == list(range(12))
    assert seen[0][3:6] == seen[0][:3]
    assert workload.batch(0)["item_1"].tolist() == list(seen[0][0])


def test_tuples_reach_the_loss_as_tuples(tmp_path: Path) -> None:
    body = """
    def loss(model, batch):
        x, y = batch
        return (model(x) - y).abs().mean()
    def make():
        return torch.nn.Linear(2, 1), [(torch.ones(3, 2), torch.zeros(3, 1))], loss
    """
    workload = build(tmp_path, body)
    assert workload.loss(workload.module, workload.batch(9)).dim() == 0


def test_a_model_may_return_its_loss_itself(tmp_path: Path) -> None:
    body = """
    class Output:
        def __init__(self, loss): self.loss = loss
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(()))
        def forward(self, input_ids):
            return Output(self.w * input_ids.float().mean())
    def make():
        return Model(), lambda i: {"input_ids": torch.full((2, 5), i)}
    """
    workload = build(tmp_path, body)
    assert workload.loss(workload.module, workload.batch(3)).item() == 3.0
    assert workload.tokens_per_step == 10


def test_a_step_function_replaces_the_training_step(tmp_path: Path) -> None:
    body = """
    def make():
        def make_step(device):
            w = torch.zeros((), device=device)
            def step(batch):
                w.add_(batch.mean())
                return w.clone()
            return step
        return {"batches": [torch.ones(3), torch.full((3,), 5.0)], "make_step": make_step}
    """
    workload = build(tmp_path, body)
    assert workload.make_step is not None
    step = workload.make_step(torch.device("cpu"))
    assert [step(workload.batch(i)).item() for i in range(3)] == [1.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "def make():\n    return 1 / 0\n",
            "ZeroDivisionError: division by zero ({file}:5 in make)",
        ),
        ("def mak():\n    pass\n", "has no function 'make'; did you mean mak?"),
        ("def make(:\n", "SyntaxError"),
        ("import does_not_exist_anywhere\n", "ModuleNotFoundError: No module named"),
        ("def make():\n    return 3\n", "returned an int"),
        ("def make():\n    return None\n", "returned nothing"),
        ("def make():\n    return {'modl': 3, 'batches': []}\n", "'modl'; did you mean model?"),
        ("def make():\n    return {'model': 3}\n", "returned no batches"),
        ("def make():\n    return 3, [1]\n", "model is an int, not a torch.nn.Module"),
        ("def make():\n    return torch.nn.ReLU(), []\n", "batches is empty"),
        ("def make():\n    return torch.nn.ReLU(), iter([])\n", "batches is empty"),
        ("def make():\n    return torch.nn.ReLU(), 3\n", "batches is an int"),
        ("def make():\n    return torch.nn.ReLU(), ['text']\n", "batch 0 is a str, not a mapping"),
        (
            "def make():\n    return torch.nn.ReLU(), [{'x': 'text'}]\n",
            "a str as 'x'; only tensors",
        ),
        ("def make(size):\n    pass\n", "TypeError: make() missing 1 required"),
        (
            "def make():\n    return torch.nn.ReLU(), lambda i: [][i]\n",
            "IndexError: list index out of range ({file}:5 in <lambda>)",
        ),
    ],
)
def test_errors_are_told_by_the_users_file_and_line(
    tmp_path: Path, body: str, expected: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        build(tmp_path, body)
    assert expected.format(file=tmp_path / "mine.py") in str(caught.value)


def test_a_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    body = "def make():\n    return torch.nn.ReLU(), [torch.ones(3)]\n"
    workload = build(tmp_path, body)
    with pytest.raises(WorkloadError, match=r"the loss is a Tensor of shape \(3,\), not a 0-dim"):
        workload.loss(workload.module, workload.batch(0))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("mine", "'mine' should read module:function"),
        ("mine:make it", "should read module:function"),
        ("./absent.py:make", "ladder.yaml:3: workload.function: there is no file"),
    ],
)
def test_a_wrong_name_is_a_mistake_in_the_ladder_file(
    tmp_path: Path, function: str, expected: str
) -> None:
    ladder = tmp_path / "ladder.yaml"
    ladder.write_text(
        f"name: mine\nrungs: [cpu_eager]\nworkload: {{kind: python, function: '{function}'}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_ladder(ladder)
    assert expected in str(caught.value)


def test_a_module_that_does_not_exist_is_told_with_the_way_out() -> None:
    plan = WorkloadPlan(kind="python", params={"function": "no_such_module:make", "params": {}})
    with pytest.raises(WorkloadError, match=r"there is no module 'no_such_module'\n.*\./file\.py"):
        WORKLOADS.get("python").build(plan, 0)


def test_the_friendly_name_does_not_load_torch() -> None:
    code = "import sys, tpu_perf; tpu_perf.Workload; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
