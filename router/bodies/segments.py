"""Bodies of /v1/segments: documents that are prefilled before anybody asks."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from hypic.router.bodies.shared import Body, DocumentBody, HypicOptions, Items, Name


class WarmBody(Body):
    """POST /v1/segments."""

    documents: Annotated[Items[DocumentBody], Field(min_length=1)]
    cache_salt: Name | None = None
    stream: bool | None = Field(default=False, description="Server-sent events, one as each document is done.")
    hypic: HypicOptions | None = None


class WarmedSegment(BaseModel):
    """What became of one document."""

    object: Literal["segment"] = "segment"
    index: int = Field(description="Of the document in the request.")
    id: str | None = Field(description="Of the cached segment; null where there is none.")
    label: str
    tokens: int
    status: Literal["built", "reused", "too_short", "failed"]
    error: str | None = None


class WarmReport(BaseModel):
    """The answer; the last event of a stream has it without `data`."""

    object: Literal["segment.report"] = "segment.report"
    built: int
    reused: int
    too_short: int
    failed: int
    seconds: float
    data: list[WarmedSegment] | None = None


class SegmentBody(BaseModel):
    """A cached segment. label: what the last request called it."""

    object: Literal["segment"] = "segment"
    id: str
    label: str
    tokens: int
    bytes: int
    tiers: list[str]
    workers: list[str]


class SegmentList(BaseModel):
    """A page; has_more says whether another begins behind last_id."""

    object: Literal["list"] = "list"
    data: list[SegmentBody]
    has_more: bool
    last_id: str | None


class SegmentDeleted(BaseModel):
    id: str
    object: Literal["segment.deleted"] = "segment.deleted"
    deleted: Literal[True] = True
