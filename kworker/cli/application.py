"""The application that verbs are added to, and the layout of their help texts."""

import inspect

import typer


def application(epilog: str = "") -> typer.Typer:
    """Returns the `kworker` command, without verbs."""
    return typer.Typer(
        name="kworker",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
        epilog=epilog,
    )


def unwrap_help(group: typer.Typer) -> None:
    """Joins the lines of each paragraph of help, so that typer wraps it at the terminal's width."""
    described = [*group.registered_commands, group.registered_callback]
    for each in described:
        if each and each.callback:
            paragraphs = inspect.cleandoc(each.callback.__doc__ or "").split("\n\n")
            each.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for each in group.registered_groups:
        if each.typer_instance:
            unwrap_help(each.typer_instance)
