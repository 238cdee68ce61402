"""Commands whose modules are imported when they are called: most need torch, which alone takes seconds."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from bert_probe.runtime.imports import imported_for_good


class LazyCommand(click.Command):
    """Stands for a command in the list of them, and gives way to it when it is called."""

    def __init__(self, name: str, module: str, help_line: str) -> None:
        """A command that lies in a module of this room, under its own name."""
        super().__init__(name, help=help_line)
        self._module = module

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """A context of the command itself, which is then what runs."""
        with imported_for_good():
            module = import_module(f"bert_probe.cli.{self._module}")
        command: click.Command = getattr(module, str(self.name))
        return command.make_context(*args, **kwargs)


class CommandGroup(click.Group):
    """A group in which Ctrl+C is told by `main` alone; click would write an empty line first."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort(*error.args) from None
