# ruff: noqa: N802  (Jinja finds a visitor by the name of the node's class)
"""Jinja's compiler, made to write counting calls into the code of a template.

At the head of every block, and around every expression that makes a value or reads one whole. What
would read files is refused here, so that it fails when the template is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jinja2.compiler import Frame

_NO_FILES = "include, import and extends are not allowed"


class CountingGenerator(CodeGenerator):
    """Jinja's compiler, writing calls of the meter into the code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wrapped: dict[int, str] = {}

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Visit a node; one marked before becomes the argument of a counting call."""
        function = self._wrapped.pop(id(node), None)
        if function is None:
            return super().visit(node, *args, **kwargs)
        self.write(f"environment.meter.{function}(")
        result = super().visit(node, *args, **kwargs)
        self.write(")")
        return result

    def blockvisit(self, nodes_: Iterable[nodes.Node], frame: Frame) -> None:
        """Write a block that counts its entry and the text it holds."""
        body = list(nodes_)
        outputs = [node for node in body if isinstance(node, nodes.Output)]
        n_chars = sum(
            len(part.data)
            for output in outputs
            for part in output.nodes
            if isinstance(part, nodes.TemplateData)
        )
        self.writeline(f"environment.meter.block({n_chars})")
        super().blockvisit(body, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """Count the length of what a loop goes through: an `if` may skip its body."""
        self._wrapped[id(node.iter)] = "iterated"
        super().visit_For(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Count the operands of a comparison."""
        self._wrapped[id(node.expr)] = "seen"
        super().visit_Compare(node, frame)

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        """Count the right side of a comparison."""
        self._wrapped[id(node.expr)] = "seen"
        super().visit_Operand(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write `a ~ b` as a counted call."""
        self.write("environment.concatenated(")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """Count a tuple that is a value; one that is assigned to stays as it is."""
        if node.ctx == "load":
            self._made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """Count a list."""
        self._made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Count a mapping."""
        self._made(super().visit_Dict, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Count a slice, which is a new value."""
        if isinstance(node.arg, nodes.Slice):
            self._made(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Include(self, node: nodes.Include, frame: Frame) -> None:
        """Refuse at compile time what would read files."""
        del frame
        self.fail(_NO_FILES, node.lineno)

    def visit_Import(self, node: nodes.Import, frame: Frame) -> None:
        """Refuse an import."""
        del frame
        self.fail(_NO_FILES, node.lineno)

    def visit_FromImport(self, node: nodes.FromImport, frame: Frame) -> None:
        """Refuse an import."""
        del frame
        self.fail(_NO_FILES, node.lineno)

    def visit_Extends(self, node: nodes.Extends, frame: Frame) -> None:
        """Refuse a parent template."""
        del frame
        self.fail(_NO_FILES, node.lineno)

    def _made(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.meter.made(")
        visit(node, frame)
        self.write(")")
