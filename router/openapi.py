"""What /openapi.json says beyond what FastAPI finds in the routes: events of streams, keys, and no 422."""

from typing import Any

from fastapi import FastAPI

from hypic.router.bodies.chat import ChatChunk
from hypic.router.guards import OPEN_PATHS

_REFERENCE = "#/components/schemas/{model}"


class DescribedAPI(FastAPI):
    """A FastAPI application whose schema is what its routes really do."""

    def __init__(self, *, asks_for_keys: bool, **options: Any) -> None:
        super().__init__(**options)
        self._asks_for_keys = asks_for_keys

    def openapi(self) -> dict[str, Any]:
        """The schema, made once."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        described = super().openapi()
        _without_422(described)
        chunk = ChatChunk.model_json_schema(ref_template=_REFERENCE)
        described["components"]["schemas"] |= chunk.pop("$defs") | {"ChatChunk": chunk}
        if self._asks_for_keys:
            _with_keys(described)
        return described


def _without_422(described: dict[str, Any]) -> None:
    """FastAPI adds it to every route with parameters; `faults` answers 400 in its place."""
    for operations in described["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        described["components"]["schemas"].pop(name, None)


def _with_keys(described: dict[str, Any]) -> None:
    described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in described["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in OPEN_PATHS else [{"key": []}]
