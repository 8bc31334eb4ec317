"""The playground page at `/`: static files that talk to this server's own API, and to nothing else."""

from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse

FOLDER = Path(__file__).parent

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""No script but ours, no connection but to where the page came from. Inline styles are widths of bars."""

FILES = {
    "/": ("index.html", "text/html"),
    "/playground/playground.css": ("playground.css", "text/css"),
    "/playground/playground.js": ("playground.js", "text/javascript"),
}

PATHS = tuple(FILES)

router = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/playground/{name}")
async def page(request: Request) -> FileResponse:
    """A file of the page. It holds nothing of anybody's, so it needs no key; what it shows, it asks for with the
    user's."""
    if request.url.path not in FILES:
        raise HTTPException(404, f"there is no {request.url.path} here")
    name, kind = FILES[request.url.path]
    return FileResponse(FOLDER / name, media_type=kind, headers=HEADERS)
