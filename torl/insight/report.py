"""The report of a run: one HTML file that needs nothing else, and a picture of its curves."""

import html
import time
from pathlib import Path
from string import Template

from torl.insight.curves import curves_of, png, svgs
from torl.insight.examples import Evaluation, heldout_of, only_after_training, samples
from torl.insight.files import atomic_write
from torl.insight.page import PAGE
from torl.insight.render import CSS, html_legend, to_html
from torl.insight.stats import Summary
from torl.run import Run


def write_report(run_dir: str | Path) -> Path:
    """Writes report.html and curves.png into a run's folder, finished or not; returns the report."""
    run = Run.open(run_dir)
    curves = curves_of(run)
    atomic_write(run.path / "curves.png", png(curves))
    atomic_write(run.report, _page(run, svgs(curves)))
    return run.report


def _page(run: Run, figures: list[str]) -> str:
    return Template(PAGE).substitute(
        trajectory_css=CSS,
        title=html.escape(run.path.resolve().name),
        description=html.escape(run.recipe.description),
        facts=_facts(run),
        heldout=_heldout(heldout_of(run)),
        curves="".join(f"<figure>{svg}</figure>" for svg in figures) or "<p>No step is done yet.</p>",
        examples=_examples(run),
        recipe=html.escape(run.recipe.to_yaml()),
        versions=_rows({name: str(value) for name, value in run.versions().items()}),
    )


def _facts(run: Run) -> str:
    """The run in one line; of one that was cut short, that it was."""
    summary, rows, recipe = run.summary(), run.metrics(), run.recipe
    if summary is None:
        state = f"not finished: {len(rows)} of {recipe.steps} steps"
    else:
        state = f"{summary['steps']} steps in {summary['seconds'] / 60:.1f} min"
    trajectories = f"{recipe.prompts_per_step} × {recipe.group_size} trajectories a step"
    tools = "tools: " + (", ".join(recipe.tools) or "none")
    made = time.strftime("%Y-%m-%d %H:%M")
    facts = [state, recipe.model, tools, trajectories, f"seed {recipe.seed}", f"written {made}"]
    return html.escape(" · ".join(facts))


def _heldout(evaluations: dict[str, Evaluation]) -> str:
    """Before against after, a pair of rows for each set."""
    if not evaluations:
        return "<p>No held-out evaluation is done yet.</p>"
    head = ["held-out tasks", "", "accuracy", "95% interval", "tasks", "code ratio", "pass ratio"]
    body = ""
    for name, evaluation in evaluations.items():
        for when, summary in (("before", evaluation.before), ("after", evaluation.after)):
            body += f'<tr class="{when}"><th>{html.escape(name) if when == "before" else ""}</th>'
            body += f"<td>{when}</td>{_cells(summary)}</tr>"
    titles = "".join(f"<th>{title}</th>" for title in head)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _cells(summary: Summary | None) -> str:
    if summary is None:
        return '<td colspan="5">not measured</td>'
    low, high = summary["ci95"]
    cells = [
        f"<strong>{_percent(summary['accuracy'])}</strong>",
        f"{_percent(low)} – {_percent(high)}{_bar(summary)}",
        str(summary["n"]),
        _percent(summary["code_ratio"]),
        _percent(summary["pass_ratio"]),
    ]
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _bar(summary: Summary) -> str:
    """The interval as a stripe on a scale from 0 to 100%, with the accuracy marked."""
    if summary["accuracy"] is None:
        return ""
    low, high = summary["ci95"]
    stripe = f"left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"
    mark = f"left:{100 * summary['accuracy']:.1f}%"
    return f'<span class="scale"><i style="{stripe}"></i><b style="{mark}"></b></span>'


def _examples(run: Run) -> str:
    shown = ""
    solved = only_after_training(run)
    if solved is not None:
        shown += "<h3>Solved only after training</h3>" + to_html(solved.after)
        shown += (
            f"<details><summary>The same task before training</summary>{to_html(solved.before)}</details>"
        )
    others = [t for t in samples(run) if solved is None or t != solved.after]
    for trajectory in others:
        shown += f"<h3>{'A right one' if trajectory.correct else 'A wrong one'}</h3>{to_html(trajectory)}"
    return html_legend() + shown if shown else "<p>No judged trajectory is stored yet.</p>"


def _rows(table: dict[str, str]) -> str:
    cells = (f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in table.items())
    return f"<table><tbody>{''.join(cells)}</tbody></table>"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
