"""A user's Python file as a network: it is run, and what goes wrong is told with its line."""

from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from cdmpp.network.graph import graph_of  # noqa: E402
from cdmpp.network.source.read import read_network  # noqa: E402
from cdmpp.network.source.user_code import may_take  # noqa: E402
from cdmpp.network.workload import Workload  # noqa: E402

FILE = """
import torch
from torch import nn
from beside import WIDTH

def good():
    return nn.Linear(WIDTH, 5), torch.randn(3, 4)

def batched(batch=2):
    return nn.Linear(4, 5), (torch.randn(batch, 4),)

def bare():
    return nn.Conv2d(3, 5, 3)

def fails():
    return nn.Linear(4, undefined)

def leaves():
    raise SystemExit("enough")

def wants(size):
    return size

def number():
    return 3

class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x

def branch():
    return Branch(), torch.randn(3)

class Sized(nn.Module):
    def forward(self, x):
        return torch.zeros(int(x.sum()))

def sized():
    return Sized(), torch.randn(3)

class Chosen(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

def chosen():
    return Chosen(), torch.randn(3)

class Svd(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[1]

def svd():
    return nn.Sequential(nn.Linear(4, 4), Svd()), torch.randn(4, 4)

class Masked(nn.Module):
    def forward(self, x):
        return x[x > 0]

def masked():
    return Masked(), torch.randn(4, 4)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(FILE)
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    return path


def test_a_function_that_makes_a_model(file):
    source = read_network(Workload(f"{file}:good"))
    assert (source.name, source.batch) == ("models.py:good", 3) and graph_of(source.module, source.name).calls
    assert (
        read_network(Workload(f"{file}:batched")).batch == 2
        and read_network(Workload(f"{file}:batched", batch=7)).batch == 7
    )
    assert read_network(Workload(f"{file}:bare", inputs={"input": [2, 3, 8, 8]})).batch == 2
    assert read_network(Workload(f"{file}:good", torch.randn(9, 4))).batch == 9


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("", r"which function of .*models\.py makes the model\? It has: good, batched"),
        (":goood", r"there is no function goood in .*It has: good, .*Give models\.py:good"),
        (":fails", r"models\.py:fails failed at .*models\.py:16, `return nn\.Linear\(4, undefined\)`: NameError"),
        (":leaves", r"models\.py:19, .*SystemExit: enough"),
        (":wants", r"is called without arguments, but: missing a required argument: 'size'"),
        (":number", r"models\.py:number returned a int: return a torch\.nn\.Module"),
        (":bare", "models.py:bare: a module says nothing about its inputs"),
        (":branch", r"Branch cannot be exported at .*models\.py:29, .*depends on the values of tensors"),
        (":sized", r"Sized cannot be exported at .*models\.py:38, .*depends on the values of tensors"),
        (":chosen", "choice between two branches by the value of a tensor"),
        (":svd", r"cannot import the torch operator _linalg_svd\.default at 1 \(Svd\), .*models\.py:52"),
        (":masked", r"torch operator index\.Tensor at the model \(Masked\), .*models\.py:59.*integer dtype"),
    ],
)
def test_what_goes_wrong_is_told_with_its_line(file, function, message):
    with pytest.raises(CdmppError, match=message):
        read_network(Workload(f"{file}{function}"))


def test_a_batch_that_is_not_taken_and_text_that_is_no_python(file, tmp_path):
    with pytest.raises(
        CdmppError, match="batch=2, but its example inputs have batch 3.*may take batch, and has to for cdmpp plan"
    ):
        read_network(Workload(f"{file}:good", batch=2))
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(CdmppError, match=r"broken\.py:2, `def f\(:`: SyntaxError"):
        read_network(Workload(f"{tmp_path / 'broken.py'}:f"))


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("def f(batch=2): 1/0", True),
        ("def f(*, batch=2): 1/0", True),
        ("def f(): 1/0", False),
        ("def f(**others): 1/0", False),
        ("def f(batch): pass\ndef f(): pass", False),
        ("def f(): pass\nf = g", True),
        ("@wrapped\ndef f(): pass", True),
        ("def g(): pass", True),
        ("def f(", True),
    ],
)
def test_parameters_are_read_without_running_the_file(tmp_path, text, may):
    (tmp_path / "net.py").write_text(text)
    assert may_take(tmp_path / "net.py", "f", "batch") == may
    assert may_take(tmp_path / "none.py", "f", "batch")
