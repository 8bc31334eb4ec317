"""A name for a model's exact weights, so that nothing cached under one is ever served under another."""

import hashlib
from pathlib import Path

_WHOLE_FILE_BYTES = 64 * 1024**2
_SAMPLES = 256
_SAMPLE_BYTES = 64 * 1024


def model_fingerprint(path: Path) -> str:
    """BLAKE2b over config.json and every safetensors file, 64 hex digits.

    Files up to 64 MiB are read whole. Of larger ones the length, the head and 256 evenly spaced samples of 64 KiB are
    read, since hashing hundreds of gigabytes at each start would cost minutes; any training step moves all of them.
    """
    digest = hashlib.blake2b((path / "config.json").read_bytes(), digest_size=32)
    for shard in sorted(path.glob("*.safetensors")):
        size = shard.stat().st_size
        digest.update(f"\0{shard.name}\0{size}\0".encode())
        with shard.open("rb") as file:
            if size <= _WHOLE_FILE_BYTES:
                digest.update(file.read())
                continue
            for sample in range(_SAMPLES):
                file.seek(sample * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
