"""A function that a file does not have is refused by its text, before anything heavy is imported."""

import subprocess
import sys

import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.source.user_code import check_written

SAYS = ("makes the model", "returns a module")
STEP = ["step", "{}", "--device", "t4", "--runtime", "torch"]
SYNCHRONY = ["synchrony", "--workers", "worker.yaml", "--bytes", "1MB", "--train", "{}"]


@pytest.mark.parametrize("words", [STEP, SYNCHRONY, ["network", "{}", "--device", "t4"]])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("none.py:make", "there is no file none.py"),
        ("made.py:mak", "there is no function mak in made.py. It has: make. Give made.py:make"),
        ("made.py:", ""),
    ],
)
def test_it_is_refused_without_torch_and_tvm(tmp_path, words, given, told):
    (tmp_path / "made.py").write_text("import torch\n\ndef make(seed, worker, workers):\n    return torch\n")
    (tmp_path / "worker.yaml").write_text("batch_s: 0.1\nbatch: 8\n")
    run = (
        "import sys; from cdmpp.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code if not {'torch', 'tvm', 'scipy'} & set(sys.modules) else 9)"
    )
    asked = [word.format(given) for word in words]
    done = subprocess.run([sys.executable, "-c", run, *asked], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "globals()['ma' + 'ke'] = len\n",
        "from os.path import *\n",
        "import torch.nn as make\n",
        "if True:\n    make = len\n",
        "def broken(:\n",
        "import sys\nsys.modules[__name__].__dict__['ma' 'ke'] = len\n",
    ],
)
def test_a_file_that_may_have_it_is_left_to_who_runs_it(tmp_path, text):
    file = tmp_path / "made.py"
    file.write_text(text)
    check_written(file, "make", *SAYS)


def test_names_that_only_look_alike_are_no_function(tmp_path):
    file = tmp_path / "made.py"
    file.write_text("def maker():\n    return remake\n")
    with pytest.raises(CdmppError, match="there is no function make in .* Give made.py:maker"):
        check_written(file, "make", *SAYS)
