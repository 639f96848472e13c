"""Options that commands share, and decorators that make commands of functions: with a client, or with settings from options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from flowsched import tokens
from flowsched.cli.context import SERVICE_WAITS, about, ask, options, run
from flowsched.cli.printing.form import Form
from flowsched.errors import InvalidRequest
from flowsched.options import Option
from flowsched.values import replace

if TYPE_CHECKING:
    from flowsched.app import Settings

T = TypeVar("T")
Id = Annotated[
    str,
    typer.Argument(metavar="ID|NAME", help="The workflow: its id, the beginning of its id, or its name."),
]


Output = Annotated[Form, typer.Option("--output", "-o", help="table, json or jsonl.")]
Reason = Annotated[str | None, typer.Option(help="Why; `flowsched events` shows it.")]
Limit = Annotated[int, typer.Option(min=1, help="Most entries.")]


Body = Callable[..., Any]
Command = Callable[..., None]


def _command(body: Body, instead: Mapping[str, Iterable[inspect.Parameter]], call: Command) -> Command:
    """A command with the parameters of a function, but others in place of some. `call`: does it, with what the user gave."""

    def command(ctx: typer.Context, **arguments: Any) -> None:
        call(ctx, **arguments)

    found = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, each in inspect.signature(body, eval_str=True).parameters.items():
        found += instead.get(
            name, () if name == "ctx" else (each.replace(kind=inspect.Parameter.KEYWORD_ONLY),)
        )
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in found}
    command.__name__, command.__doc__ = body.__name__, body.__doc__
    return command


def asks(*, to_change: bool = False, own: bool = False) -> Callable[[Body], Command]:
    """Make a command of a coroutine function: it gets a client of the service in place of its parameter `client`.

    Its parameter `ident` becomes the argument that names a workflow; `to_change` and `own` are as for `naming.find`.
    """

    def decorated(body: Body) -> Command:
        def call(ctx: typer.Context, **arguments: Any) -> None:
            if not one:
                ask(ctx, lambda client: body(client=client, **arguments))
                return
            about(
                ctx, arguments.pop("workflow"), lambda client, ident: body(client=client, ident=ident, **arguments),
                to_change=to_change, own=own,
            )  # fmt: skip

        one = "ident" in inspect.signature(body).parameters
        named = inspect.Parameter("workflow", inspect.Parameter.KEYWORD_ONLY, annotation=Id)
        return _command(body, {"client": (), "ident": (named,)}, call)

    return decorated


def runs(unavailable: str = SERVICE_WAITS) -> Callable[[Body], Command]:
    """Make a command of a coroutine function that asks no service. `unavailable`: as for `context.run`."""

    def decorated(body: Body) -> Command:
        def call(ctx: typer.Context, **arguments: Any) -> None:
            arguments |= {"ctx": ctx} if "ctx" in inspect.signature(body).parameters else {}
            run(options(ctx), body(**arguments), unavailable)

        return _command(body, {}, call)

    return decorated


def with_settings(*names: str, kind: type | None = None, **changed: Any) -> Callable[[Body], Command]:
    """Give a command options in place of its parameter `settings`: one for each field of settings that declares one.

    Args:
        names: Of the fields; none = all.
        kind: The settings, if not `app.Settings`. The parameter gets the values that the user gave, by field.
        changed: The fields that have another default here than in `app.Settings`.
    """
    from flowsched.app import Settings

    every = {each.name: each for each in _parameters(kind or Settings)}
    offered = [every[name] for name in names or every]

    def decorated(body: Body) -> Command:
        def call(ctx: typer.Context, **arguments: Any) -> None:
            values = {each.name: arguments.pop(each.name) for each in offered}
            fields = _fields_of(kind or Settings, values)
            body(ctx, settings=fields if kind else _settings(ctx, fields, changed), **arguments)

        return _command(body, {"settings": offered}, call)

    return decorated


def settings_variables() -> set[str]:
    """The variables of the environment that the options of `serve` and the settings of Kubernetes read."""
    from flowsched.app import Settings
    from flowsched.cluster.kubernetes.settings import VARIABLES

    def read(kind: type) -> Iterator[str]:
        for _, _, option, nested in _fields(kind):
            yield from option.variable.split() if option else read(nested) if nested else ()

    return {*VARIABLES, *read(Settings)}


def _fields(kind: type) -> Iterator[tuple[str, Any, Option | None, type | None]]:
    """Each field of settings: its name and type, with its option, or with the settings that nest there."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        option = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)), None)
        nested = next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)
        yield name, get_args(hint)[0] if option else hint, option, nested  # type: ignore[misc]


def _parameters(kind: type, *, optional: bool = False) -> Iterator[inspect.Parameter]:
    """The options of settings, and of those that nest in them.

    `optional`: these settings may be missing, and their defaults come from the environment.
    """
    defaults = inspect.signature(kind).parameters
    for name, hint, option, nested in _fields(kind):
        if option is None:
            if nested is not None:
                yield from _parameters(nested, optional=defaults[name].default is None)
            continue
        default = defaults[name].default
        if option.repeated:
            hint, default = list[str] | None, None
        elif option.parse or optional or isinstance(default, Path):
            hint, default = str | None if option.parse else hint | None, None
        about = typer.Option(
            option.flag or f"--{name.replace('_', '-')}", help=option.help, envvar=option.variable.split() or None,
            metavar=option.metavar, min=option.least, max=option.most,
        )  # fmt: skip
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, about]
        )


def _settings(ctx: typer.Context, fields: Mapping[str, Any], changed: Mapping[str, Any]) -> Settings:
    """The settings of a service with some fields as the user gave them."""
    from flowsched.app import Settings
    from flowsched.cluster.kubernetes.settings import from_environment

    return _with(
        Settings(
            root=tokens.data_folder(),
            log_level="debug" if options(ctx).debug else "error",
            kubernetes=from_environment(os.environ) if fields.get("cluster") == "kubernetes" else None,
            **changed,
        ),
        fields,
    )


def _fields_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the options that were given, those of nested settings too, as the fields have them; None = not given."""
    found: dict[str, Any] = {}
    for name, _, option, nested in _fields(kind):
        value = values.get(name)
        if option is None:
            found |= {} if nested is None else _fields_of(nested, values)
        elif value is not None:
            try:
                if option.repeated:
                    found[name] = tuple(map(option.parse or str, value))
                else:
                    found[name] = option.parse(value) if option.parse else value
            except (ValueError, InvalidRequest) as error:
                flag = option.flag or f"--{name.replace('_', '-')}"
                raise typer.BadParameter(str(error), param_hint=flag) from None
    return found


def _with(settings: T, fields: Mapping[str, Any]) -> T:
    """Settings with other values of some fields, and so the settings that nest in them."""
    found: dict[str, Any] = {}
    for name, _, _, _ in _fields(type(settings)):
        if is_dataclass(inner := getattr(settings, name)):
            found[name] = _with(inner, fields)
        elif name in fields:
            found[name] = fields[name]
    return replace(settings, **found)  # type: ignore[type-var]
