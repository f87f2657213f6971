"""`tpu-perf schema`: the JSON schema of ladder files, for editors."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON schema of a ladder file (ladders/schema.json holds the same)."""
    print(schema_text(), end="")


def schema_text() -> str:
    """What `ladders/schema.json` must hold."""
    import json

    from tpu_perf.config.schema import json_schema
    from tpu_perf.ladder.plan import catalogue

    return json.dumps(json_schema(catalogue()), indent=2) + "\n"
