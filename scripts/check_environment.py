"""``make`` asks whether torchvision and transformers can be imported, and mends or removes a torchvision that cannot.

The compiled operators of torchvision load only with the build of torch that they were compiled for, and PyPI's wheels
for Linux are compiled for CUDA. torchvision allows for operators that do not load, as those do beside a torch for CPUs,
except that it describes two of them all the same and fails. Its models use neither. So the two are declared, without a
kernel: calling them ends in torchvision's own error, "Couldn't load custom C++ ops".
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

DECLARATIONS = """
# Added by scripts/check_environment.py of cdmpp: _meta_registrations.py fails where these two are not declared.
if not _has_ops():
    _declarations = torch.library.Library("torchvision", "DEF")
    for _operator in ("nms", "qnms"):
        _declarations.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def error_of(statement: str) -> str:
    """The last line that a new interpreter prints when the statement fails; empty if it runs."""
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}" if done.returncode else ""


def main() -> None:
    """Exit with a message where transformers cannot be imported at the end."""
    if (spec := importlib.util.find_spec("torchvision")) and error_of("import torchvision"):
        extension = Path(next(iter(spec.submodule_search_locations or []))) / "extension.py"
        extension.write_text(extension.read_text() + DECLARATIONS)
        if error := error_of("import torchvision.models"):
            print(f"torchvision is removed, it does not load with this torch: {error}")
            subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
        else:
            print("torchvision loads without its compiled operators, which were built for another torch")
    if error := error_of("from transformers import LlamaConfig, LlamaForCausalLM"):
        sys.exit(f"error: transformers does not load in this environment: {error}")


if __name__ == "__main__":
    main()
