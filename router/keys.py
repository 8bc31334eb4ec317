"""API keys and whose they are. Keys themselves are nowhere: the file has their SHA-256 hashes.

A plain hash is enough for keys that are random (`openssl rand -hex 32`): there is nothing to guess, so nothing to slow
down. The tenant of a key becomes part of every cache key, see `Tenant.salt`.
"""

import hashlib
import hmac
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from hypic.errors import HypicError

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Tenant:
    """Who sent a request. name: "" where no keys are asked for. operator: may flush and inspect the server."""

    name: str = ""
    operator: bool = True

    def salt(self, asked: str | None) -> str:
        """What the tenant's cache keys are made with: its name, which it cannot choose, and what the request asks for,
        which only narrows it. The length in front keeps the two apart."""
        return f"{len(self.name)}:{self.name}{asked or ''}" if self.name else (asked or "")


class ApiKeys:
    """Known keys by their hash."""

    def __init__(self, tenants: dict[str, Tenant]) -> None:
        """tenants: by SHA-256 of the key, in hexadecimal."""
        self._tenants = tenants

    @classmethod
    def load(cls, path: Path) -> "ApiKeys":
        """From a TOML file: a table for each tenant, with the list `sha256` and perhaps `operator = true`. Raises
        HypicError where it is not that."""
        try:
            tables = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise HypicError(f"cannot read the API keys in {path}: {error}") from error
        tenants: dict[str, Tenant] = {}
        for name, table in tables.items():
            hashes, operator = _read(path, name, table)
            for known in hashes:
                if known in tenants:
                    raise HypicError(f"{path}: one key of {name} is also one of {tenants[known].name}")
                tenants[known] = Tenant(name, operator)
        if not tenants:
            raise HypicError(f"{path} has no keys: nobody could use the server")
        return cls(tenants)

    def tenant(self, key: str) -> Tenant | None:
        """Whose key it is. Every known hash is compared, each in constant time, so time tells nothing."""
        presented = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        found: Tenant | None = None
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(known, presented):
                found = tenant
        return found


def _read(path: Path, name: str, table: object) -> tuple[list[str], bool]:
    """Hashes of a tenant's keys, and whether it is an operator."""
    expected = f'{path}: [{name}] must have sha256 = ["..."], hashes of 64 hexadecimal digits, and may have operator'
    if not name or not isinstance(table, dict) or not table.keys() <= {"sha256", "operator"}:
        raise HypicError(expected)
    hashes, operator = table.get("sha256"), table.get("operator", False)
    if not isinstance(hashes, list) or not isinstance(operator, bool):
        raise HypicError(expected)
    if not all(isinstance(known, str) and _HASH.fullmatch(known) for known in hashes):
        raise HypicError(expected)
    return hashes, operator
