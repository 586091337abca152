"""Compact ASTs: what the predictor sees of a tensor program, as numbers. Extracting needs TVM, reading does not."""

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import EXTRACTOR_VERSION, KERNEL_FEATURES, LEAF_FEATURES
from cdmpp.ast.table import AstTable, read_asts, write_asts

__all__ = ["EXTRACTOR_VERSION", "KERNEL_FEATURES", "LEAF_FEATURES", "AstTable", "CompactAST", "read_asts", "write_asts"]
