"""What a CPU compiler made of a program, read from its LLVM IR and machine code without running either."""

from cdmpp.machine_code.cpu.code_features import CODE_FEATURES, CODE_NAMES, CODE_VERSION, CODE_WIDTH

__all__ = ["CODE_FEATURES", "CODE_NAMES", "CODE_VERSION", "CODE_WIDTH"]
