"""A search as one HTML page that holds all it needs."""

from subbyte.report.pages import render
from subbyte.report.tuning.charts import bit_map, cost_history, front_chart, loss_history, shade
from subbyte.report.tuning.ops import tuned_ops
from subbyte.report.tuning.sensitivities import input_sensitivities, weight_perturbations, weight_sensitivities
from subbyte.report.tuning.table import conclusion, outcome_rows
from subbyte.report.tuning.untried import left_out_groups, untried_of
from subbyte.report.tuning.words import duration, error_text, loss_text, objective_text, perturbation_text
from subbyte.tuning import TuneResult


def as_html(result: TuneResult) -> str:
    """Charts of the front and of the history, the map of the network, sensitivities, tables of ops and trials."""
    ops = tuned_ops(result)
    return render(
        "tuning/page.html.jinja",
        result=result, conclusion=conclusion(result), outcome=list(outcome_rows(result)), ops=ops, map=bit_map(ops),
        fronts=[front_chart(result, name) for name in result.wanted.goal.names],
        histories=[loss_history(result), cost_history(result)],
        sensitivities=[("weights", weight_sensitivities(result)), ("inputs", input_sensitivities(result))],
        perturbations=weight_perturbations(result),
        shade=shade, duration=duration, error_text=error_text, perturbation_text=perturbation_text,
        loss_text=loss_text, objective_text=objective_text, left_out=left_out_groups(result),
        untried=[(name, untried_of(result, (name, kind))) for name, kind in result.untried],
    )  # fmt: skip
