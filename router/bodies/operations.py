"""Bodies of sessions and of what operators ask."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from hypic.router.bodies.shared import Body, Name


class OpenSessionBody(Body):
    """As SGLang's. capacity_of_str_len is taken and without effect: sessions hold references, not room."""

    capacity_of_str_len: Annotated[int, Field(ge=0)] | None = None
    session_id: Name | None = Field(
        default=None, description="Of the client's choice; a new one is made up without it."
    )
    cache_salt: Name | None = None


class CloseSessionBody(Body):
    session_id: Annotated[Name, Field(min_length=1)]
    cache_salt: Name | None = None


class Flushed(BaseModel):
    """How many segments were dropped, of all tenants and workers."""

    segments: int


class ServerInfo(BaseModel):
    """What is served, under which limits, and what each worker says of itself."""

    version: str
    model: str
    max_tokens: int
    arm: str
    limits: dict[str, Any]
    workers: list[dict[str, Any]]
