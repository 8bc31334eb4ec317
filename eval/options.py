"""Command-line options made from the fields of config dataclasses: the dataclass is the one list of defaults.

A command declares a parameter annotated with a config class; `with_config` puts one option per field in its place and
hands the command the finished config. The help of an option is what the class's docstring says about the field.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Json = Annotated[bool, typer.Option("--json", help="End with one JSON object as the last line of output.")]
Out = Annotated[Path | None, typer.Option(help="Folder to write the JSON and a Markdown report to as well.")]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn at random.")]
Full = Annotated[bool, typer.Option("--full", help="More of everything; takes longer than a minute.")]


def with_config(command: Callable[..., None]) -> Callable[..., None]:
    """The command with config parameters unfolded into options. A field that the command declares as a parameter of its
    own is left to the command. A value that the config refuses is a usage error."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    configs = {name: hints[name] for name in own if is_dataclass(hints[name])}
    parameters = [own[name].replace(annotation=hints[name]) for name in own if name not in configs]
    taken: dict[str, list[str]] = {}
    for name, config in configs.items():
        unfolded = [parameter for parameter in _options(config) if parameter.name not in own]
        taken[name] = [parameter.name for parameter in unfolded]
        parameters += unfolded

    def run(**values: Any) -> None:
        built = {
            name: _build(configs[name], {field: values.pop(field) for field in names}) for name, names in taken.items()
        }
        command(**values, **built)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def field_help(config: type) -> dict[str, str]:
    """What a docstring says about each field, from sentences of the form "name, other: text."."""
    names = "|".join(field.name for field in fields(config))
    text = " ".join((config.__doc__ or "").split())
    mark = re.compile(rf"(?:^|(?<=[.\s]))((?:(?:{names}), )*(?:{names})): ")
    pieces = mark.split(text)[1:]
    found: dict[str, str] = {}
    for group, said in zip(pieces[::2], pieces[1::2], strict=True):
        found.update({name: said.strip() for name in group.split(", ")})
    return found


def _options(config: type) -> list[inspect.Parameter]:
    help_texts, hints = field_help(config), get_type_hints(config)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[
                hints[field.name],
                typer.Option(
                    help=help_texts.get(field.name), rich_help_panel=f"{config.__name__.removesuffix('Config')} options"
                ),
            ],
        )
        for field in fields(config)
    ]


def _build(config: Callable[..., Any], values: dict[str, Any]) -> Any:
    try:
        return config(**values)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
