"""The `subbyte` command: what it can be told."""

from pathlib import Path
from typing import Annotated

import typer

import subbyte
from subbyte.cli.capability_tables import check_capability, show_capability
from subbyte.cli.command import Application, Command
from subbyte.cli.console import out
from subbyte.cli.demo import run_demo
from subbyte.cli.doctor import examine
from subbyte.cli.dtype_table import dtype_table
from subbyte.cli.kernel_table import kernel_table
from subbyte.cli.quantize import quantize_recipe
from subbyte.cli.train import train_recipe
from subbyte.cli.tune import NOT_MET, tune_recipe
from subbyte.export.checkpoint import read_report
from subbyte.report import Summary
from subbyte.report.json_text import json_text

app = typer.Typer(
    cls=Application,
    help="Quantization below eight bits for PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
capability_app = typer.Typer(help="Look into capability files.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(capability_app, name="capability")

BUILT_IN = "pytorch_cpu"
CapabilitySource = Annotated[str, typer.Argument(metavar="[FILE]", help="A capability file, or a built-in's name.")]


def run() -> None:
    """The entry point of the installed command."""
    app(prog_name="subbyte")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"subbyte {subbyte.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Quantization below eight bits for PyTorch."""


@app.command("demo", cls=Command)
def demo(
    output: Annotated[Path, typer.Option(help="Where the w4a4 checkpoint goes.")] = Path("subbyte-demo.safetensors"),
) -> None:
    """Train a small network, quantize it at 8 to 1 bits.

    The images are scikit-learn's handwritten digits; prints accuracy and size, saves a checkpoint, loads it back.
    """
    run_demo(output)


@app.command("quantize", cls=Command)
def quantize(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to quantize, how, and where it goes.")],
) -> None:
    """Quantize a model as a recipe says.

    Saves the checkpoint that the recipe names, and prints what each op became.
    """
    quantize_recipe(recipe)


@app.command("tune", cls=Command)
def tune(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE.yaml", help="What to tune, how good it is, and where it goes.")
    ],
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with charts, too.")] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write everything that was found, too.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Write a line for each trial, too.")] = None,
) -> None:
    """Find the smallest, or fastest, model that is good enough.

    Saves the checkpoint that the recipe names, and prints what came of it. Exit code 3: no trial was good enough; the
    model that comes nearest is saved all the same. Interrupted, the same command goes on where it was.
    """
    pages = {".html": html, ".json": json, ".csv": csv}
    if not tune_recipe(recipe, {ending: page for ending, page in pages.items() if page is not None}):
        raise typer.Exit(NOT_MET)


@app.command("train", cls=Command)
def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to train, on what, and where it goes.")],
) -> None:
    """Train a model with quantization as a recipe says.

    Saves the checkpoint that the recipe names, after each epoch what is best so far, and prints what came of it.
    Interrupted, the same command goes on where it was.
    """
    train_recipe(recipe)


@app.command("summary", cls=Command)
def summary(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="What subbyte saved.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows and totals as JSON.")] = False,
) -> None:
    """Print what a checkpoint holds, op by op."""
    report = Summary(**read_report(checkpoint))
    if as_json:
        typer.echo(json_text(report.to_dict(), indent=2))
    else:
        out().print(report)


@app.command("doctor", cls=Command)
def doctor(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE.yaml", help="Names the float model, its data and a config.")
    ],
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Examine this saved model instead of quantizing.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with charts, too.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the figures, too.")] = None,
) -> None:
    """Tell where a quantized model loses accuracy, and what may help.

    Runs the float model and the quantized one on the recipe's data and compares them op by op; saves no model.
    """
    pages = {".html": html, ".json": json}
    examine(recipe, checkpoint, {ending: page for ending, page in pages.items() if page is not None})


@app.command("dtypes", cls=Command)
def dtypes(
    capability: Annotated[str, typer.Option(metavar="FILE", help="Add the types that this capability file describes.")]
    = BUILT_IN,
) -> None:  # fmt: skip
    """List the data types and their values."""
    out().print(dtype_table(capability))


@app.command("kernels", cls=Command)
def kernels() -> None:
    """List the kernels, and which of them this machine uses.

    SUBBYTE_ISA=scalar, avx2, avx512, neon or torch forces one.
    """
    out().print(kernel_table())


@capability_app.command("check", cls=Command)
def capability_check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A capability file, or a built-in's name.")],
    model: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="Also say which ops of this model are covered.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="Batches for the model, to find its functional ops too.")
    ] = None,
) -> None:
    """Check a file; print every derived range.

    With --model, also which ops of the model the file covers.
    """
    check_capability(file, model, data)


@capability_app.command("show", cls=Command)
def capability_show(file: CapabilitySource = BUILT_IN) -> None:
    """Print a file, all that it extends merged in."""
    show_capability(file)
