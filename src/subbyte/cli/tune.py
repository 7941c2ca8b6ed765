"""`subbyte tune`: a recipe in; the best model's checkpoint, and how it was found, out."""

from collections.abc import Mapping
from pathlib import Path

import torch

from subbyte.cli.console import note, out, say
from subbyte.cli.quantize import data_of, float_model, told_of
from subbyte.cli.reference import importing_from, load_function
from subbyte.cli.tune_recipe import TuneRecipeFile
from subbyte.errors import ConfigError
from subbyte.export.checkpoint import save
from subbyte.quantization import tune
from subbyte.report import summary
from subbyte.report.tuning.table import conclusion, outcome_table
from subbyte.tuning import TuneResult, check_report_path
from subbyte.tuning.storage import displayed

NOT_MET = 3  # the exit code where no trial was good enough


def tune_recipe(path: Path, pages: Mapping[str, Path]) -> bool:
    """Do what a recipe says and print the result.

    Args:
        path: of the recipe.
        pages: reports to write, too, by `.html`, `.json` and `.csv`.

    Returns:
        whether the criterion is met.

    Raises:
        SubbyteError: the recipe, or something that it names, is wrong; with file and line.
    """
    file = TuneRecipeFile(path)
    for ending, page in pages.items():  # before hours are spent
        check_report_path(page)
        if page.suffix != ending:
            raise ConfigError(f"--{ending[1:]}: {page} does not end in {ending}; name a file that does")
    with importing_from(path.parent):
        result = _tuned(file)
    output = file.recipe.beside(file.recipe.values.output)
    save(result.model, output)
    out().print(summary(result.model))
    out().print(outcome_table(result))
    for line in conclusion(result):
        say(line)
    say(f"saved to {output} ({output.stat().st_size:,} bytes)")
    for page in pages.values():
        result.report(page)
        say(f"saved to {page}")
    return result.criterion_met


def _tuned(file: TuneRecipeFile) -> TuneResult:
    recipe, values, options = file.recipe, file.recipe.values, file.options
    model = float_model(recipe)
    evaluate = torch.no_grad()(load_function(values.evaluate, recipe.folder, recipe.at("evaluate")))
    named = options.loss_fn
    second = options.confirm
    confirm = None
    if second is not None:
        confirm = torch.no_grad()(load_function(second, recipe.folder, file.at("confirm")))
    loss_fn = None if named is None else load_function(named, recipe.folder, file.at("loss_fn"))
    data = data_of(recipe)
    note(f"tuning; trials are kept in {displayed(file.storage)}")
    with told_of(recipe):
        return tune(
            model, data, evaluate,
            config=recipe.request(), first_last=values.first_last, capability=recipe.loaded_capability(),
            max_loss=options.max_loss, criterion=options.criterion, higher_is_better=options.higher_is_better,
            metric_weights=options.metric_weights, confidence=options.confidence, confirm=confirm,
            objective=options.objective, budgets=options.budgets,
            strategy=options.strategy, strategy_options=options.strategy_options,
            recover="default" if values.recover is None else values.recover,
            loss_fn=loss_fn, max_trials=options.max_trials, timeout=options.timeout, seed=values.seed,
            storage=file.storage, study=options.study, distributed=options.distributed,
            early_stopping=options.early_stopping,
        )  # fmt: skip
