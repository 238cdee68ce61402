"""Commands whose modules are imported only when called, because most import torch, which takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from bert_probe.cli.derived import DerivedCommand, build, derived_commands
from bert_probe.runtime.imports import long_lived_imports


class LazyCommand(click.Command):
    """A command whose module or question is imported only when the command is called."""

    def __init__(self, name: str, source: str | DerivedCommand, help_line: str, full_name: str = "") -> None:
        super().__init__(name, help=help_line)
        self._source = source
        self._full_name = full_name or name

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Import the actual command and return its context, so that it runs in place of this object."""
        with long_lived_imports():
            if isinstance(self._source, str):
                module = import_module(f"bert_probe.cli.{self._source}")
                command: click.Command = getattr(module, str(self.name).replace("-", "_"))
            else:
                command = build(self._full_name, self._source)
        return command.make_context(*args, **kwargs)


class CommandGroup(click.Group):
    """A group of commands, some of which are derived from questions.

    Attributes:
        prefix: common prefix of the full names of the derived commands, such as "diff "; "" includes all
            derived commands.
        has_derived: whether the group contains derived commands.
    """

    def __init__(self, *args: Any, prefix: str = "", has_derived: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prefix, self.has_derived = prefix, has_derived

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name; hand-written commands take precedence over derived commands."""
        command = super().get_command(ctx, cmd_name)
        if command is None and self.has_derived and cmd_name in self._derived():
            derived = self._derived()[cmd_name]
            command = LazyCommand(cmd_name, derived, derived.summary, f"{self.prefix}{cmd_name}")
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *(self._derived() if self.has_derived else ())})

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Ctrl+C is reported by `main`, because click would print an empty line first."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort(*error.args) from None

    def _derived(self) -> Mapping[str, DerivedCommand]:
        commands = {
            name.removeprefix(self.prefix): derived
            for name, derived in derived_commands().items()
            if name.startswith(self.prefix)
        }
        return {name: derived for name, derived in commands.items() if " " not in name}
