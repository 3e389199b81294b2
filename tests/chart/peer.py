"""Renders a chart and checks what comes out; runs in the environment of scripts/peers/chart.txt, JSON in and out.

In: the chart's folder, sets of values by name, and wrong values by name. Out: the manifests of each set, what is wrong
with them, and why each wrong set was refused.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python as helm  # type: ignore[import-not-found]
import kubernetes_validate  # type: ignore[import-not-found]
import yaml  # type: ignore[import-untyped,unused-ignore]
from cloudcoil.models.keda.v1alpha1 import ScaledObject  # type: ignore[import-not-found]
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor  # type: ignore[import-not-found]

MODELS = {each.__name__: each for each in (ScaledObject, PrometheusRule, ServiceMonitor)}
WARNING = 2


def manifests(chart: Any, values: dict[str, Any]) -> tuple[list[Any], str]:
    """Return the manifests of a set of values, and the notes."""
    rendered = chart.render(values=values, name="site", namespace="fleet")
    notes = "".join(text for path, text in rendered.items() if path.endswith("NOTES.txt"))
    texts = [text for path, text in rendered.items() if not path.endswith("NOTES.txt")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each], notes


def problem(manifest: Any) -> str:
    """Return why a manifest is wrong, by the newest schemas, strictly; empty if it is right."""
    try:
        if model := MODELS.get(manifest["kind"]):
            model.model_validate(manifest, strict=True)
        else:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    except Exception as error:  # noqa: BLE001 - the caller wants it in words
        return f"{manifest.get('kind')} {manifest.get('metadata', {}).get('name')}: {error}"
    return ""


def check(folder: str, sets: dict[str, Any], wrong: dict[str, Any], broken: list[Any]) -> dict[str, Any]:
    """Render and check everything."""
    chart = helm.Chart.load(folder)
    found = {name: manifests(chart, values) for name, values in sets.items()}
    problems = [f"{name}: {why}" for name, (each, _) in found.items() for why in map(problem, each) if why]
    for name, values in sets.items():
        report = helm.lint(folder, values=values, strict=True, kube_version=f"v{kubernetes_validate.latest_version()}")
        problems += [f"{name}: lint: {each}" for each in report["messages"] if each["severity"] >= WARNING]
        problems += [f"{name}: lint: {each}" for each in report["errors"]]
    refused = {}
    for name, values in wrong.items():
        try:
            chart.render(values=values, name="site")
        except helm.HelmError as error:
            refused[name] = str(error)
    return {
        "manifests": {name: each for name, (each, _) in found.items()},
        "notes": {name: notes for name, (_, notes) in found.items()},
        "problems": problems,
        "refused": refused,
        "broken": [problem(each) for each in broken],
        "kubernetes": kubernetes_validate.latest_version(),
    }


if __name__ == "__main__":
    print(json.dumps(check(**json.load(sys.stdin))))  # noqa: T201 - its answer
