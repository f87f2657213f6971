"""The JSON schema of a ladder file, for editors; `ladders/schema.json` holds what it returns."""

from __future__ import annotations

from typing import Any

from tpu_perf.config.catalogue import Catalogue


def json_schema(catalogue: Catalogue) -> dict[str, Any]:
    """The schema with this installation's rungs, engines and workload kinds as choices."""
    schema = catalogue.ladder_model().model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tpu_perf ladder",
        **{key: value for key, value in schema.items() if key != "title"},
    }
