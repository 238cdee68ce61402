"""Static analysis of source code: imports of a file, and computations in a page."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Callable, Iterator

PLAIN = {"__future__", "collections", "contextlib", "dataclasses", "functools", "pathlib", "typing"}
"""Modules of the standard library that a page may import, because they neither compute nor run code."""

TABLES = {"DataFrame", "Index", "Series"}
"""Classes of pandas that a page may use, because they only assemble tables."""

REDUCING = frozenset(
    """
    abs agg aggregate all any apply argmax argmin argpartition argsort average clip corr corrwith cov
    cummax cummin cumprod cumsum describe diff divide dot eval exp groupby idxmax idxmin interpolate
    kurt log log2 matmul max mean median melt min mode mul multiply nanmax nanmean nlargest norm
    nsmallest pct_change pivot pivot_table pow prod product ptp quantile rank resample rolling round
    searchsorted sem skew softmax sort_values sqrt std sub subtract sum tensordot trace transform
    transpose unique value_counts var vecdot where
    """.split()  # noqa: SIM905
)
"""Methods of arrays and tables that a page must not use, because they compute numbers."""

COMPUTING = {"abs", "divmod", "eval", "exec", "__import__", "max", "min", "pow", "round", "sum"}
"""Builtins that a page must not use, because they compute or run code that is not in the source."""

LIBRARIES = {"np", "numpy", "scipy", "torch", "math"}


def imported(source: str) -> Iterator[tuple[str, bool]]:
    """Yield the full name of each import in a source, and whether the import is only for type checking.

    ``from a.b import c`` gives ``a.b.c``. An import with a computed name gives "a computed name".
    """
    nodes = [*ast.walk(ast.parse(source))]
    guarded = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in nodes:
        for_types = id(node) in guarded
        if isinstance(node, ast.Import):
            yield from ((alias.name, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            yield from ((f"{node.module}.{alias.name}", for_types) for alias in node.names)
        elif isinstance(node, ast.Call) and _called_name(node).endswith(("__import__", "import_module")):
            name = node.args[0] if node.args else None
            yield str(name.value) if isinstance(name, ast.Constant) else "a computed name", for_types


def _called_name(call: ast.Call) -> str:
    """Return the last part of a called name, such as "c" for ``a.b.c()``; empty for other expressions."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


_IMPORT = re.compile(
    r"^[ \t]*((?:from[ \t]+[\w.]+[ \t]+import|import)\b[^\n()#;\"'\\]*(?:\([^)]*\))?)", re.MULTILINE
)


def possible_imports(source: str) -> set[str]:
    """Return the full name of each import in a source, including imports in its strings.

    This is much faster than `imported`, because only the import statements are parsed.
    """
    names: set[str] = set()
    for text in _IMPORT.findall(source):
        try:
            (statement,) = ast.parse(text).body
        except SyntaxError:
            # A string contains a line of prose or JavaScript, or a comment ends the parentheses.
            names.update(name for name, _ in imported(source))
            continue
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        prefix = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
        names.update(prefix + alias.name for alias in statement.names)
    return names


def page_faults(source: str) -> list[str]:
    """Return a sentence for each computation in a page that is not allowed there.

    Pages may read controls, ask questions and draw. They may also count from 1 instead of 0, join strings and
    lists, and derive picture sizes from the number of elements. All other computations belong in the package.
    """
    tree = ast.parse(source)
    types = _annotations(tree)
    faults = [f"imports {name}" for name, _ in imported(source) if not _may_import(name)]
    return faults + [
        f"line {getattr(node, 'lineno', 0)} computes: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if id(node) not in types and any(rule(node) for rule in _RULES)
    ]


def globals_read(source: str) -> list[str]:
    """Return the global variables that functions of a script read, each as "function reads name".

    Constants and types, which begin with a capital letter, are allowed. Other values must be arguments.
    """
    script = symtable.symtable(source, "page", "exec")
    variables = {
        symbol.get_name()
        for symbol in script.get_symbols()
        if symbol.is_assigned() and not symbol.is_imported() and not symbol.is_namespace()
    }
    return [
        f"{function.get_name()} reads {name}"
        for function in script.get_children()
        if function.get_name().isidentifier() and function.get_name() not in _UNNAMED
        for name in sorted(_globals_of(function) & variables)
        if not name.lstrip("_")[:1].isupper()
    ]


_UNNAMED = {"lambda", "listcomp", "setcomp", "dictcomp", "genexpr"}


def _globals_of(table: symtable.SymbolTable) -> set[str]:
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return own.union(*map(_globals_of, table.get_children()))


def _may_import(name: str) -> bool:
    package, _, submodule = name.partition(".")
    if package == "bert_probe":
        return not submodule.startswith("cli") and not any(
            part.startswith("_") for part in submodule.split(".")
        )
    return package in PLAIN | {"streamlit", "pandas"} and name != "functools.reduce"


def _annotations(tree: ast.AST) -> set[int]:
    """Return the ids of all nodes that are part of a type annotation."""
    annotations: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg):
            annotations.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotations.append(node.returns)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "cast"):
            annotations += node.args
    return {id(inner) for node in annotations if node is not None for inner in ast.walk(node)}


def _calculates(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        number = isinstance(node.operand, ast.Constant)
        return isinstance(node.op, ast.USub | ast.Invert | ast.UAdd) and not number
    if isinstance(node, ast.BinOp):
        return not _harmless(node.op, node.left, node.right)
    return isinstance(node, ast.AugAssign) and not _harmless(node.op, node.target, node.value)


def _harmless(op: ast.operator, left: ast.expr, right: ast.expr) -> bool:
    """Return whether an operation joins collections, counts from 1, or computes a picture size."""
    if isinstance(op, ast.Add | ast.Mult | ast.Mod) and (_is_text_or_list(left) or _is_text_or_list(right)):
        return True
    if isinstance(op, ast.BitOr):
        return isinstance(left, ast.Dict | ast.Set) or isinstance(right, ast.Dict | ast.Set)
    if isinstance(op, ast.Add | ast.Sub) and isinstance(right, ast.Constant) and right.value == 1:
        return True
    sizes = isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv)
    return sizes and _is_size(left) and _is_size(right)


def _is_text_or_list(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_text_or_list(node.body) and _is_text_or_list(node.orelse)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add | ast.Mult) and (
            _is_text_or_list(node.left) or _is_text_or_list(node.right)
        )
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple)


def _is_size(node: ast.expr) -> bool:
    """Return whether a node is an integer literal or the length of a collection."""
    if isinstance(node, ast.BinOp):
        return _is_size(node.left) and _is_size(node.right) and _harmless(node.op, node.left, node.right)
    counted = isinstance(node, ast.Call) and ast.unparse(node.func) == "len"
    return counted or (isinstance(node, ast.Constant) and isinstance(node.value, int))


def _calls_what_computes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        sizes = node.func.id in ("min", "max") and not node.keywords and all(map(_is_size, node.args))
        return node.func.id in COMPUTING and not (sizes and len(node.args) > 1)
    return isinstance(node.func, ast.Attribute) and node.func.attr in REDUCING


def _reaches_a_library(node: ast.AST) -> bool:
    """Return whether a node uses a numerical library, or a part of pandas other than tables."""
    if isinstance(node, ast.Name):
        return node.id in LIBRARIES
    if not isinstance(node, ast.Attribute):
        return False
    of_pandas = isinstance(node.value, ast.Name) and node.value.id in ("pd", "pandas")
    return node.attr in LIBRARIES or (of_pandas and node.attr not in TABLES)


_RULES: tuple[Callable[[ast.AST], bool], ...] = (_calculates, _calls_what_computes, _reaches_a_library)
