"""What pip calls, in the unpacked archive."""

from __future__ import annotations

import shutil
from email import message_from_bytes
from pathlib import Path

METADATA = Path("PKG-INFO")


def prepare_metadata_for_build_wheel(folder: str, _settings: object = None) -> str:
    """Write the metadata into ``folder``; the name of its folder there."""
    metadata = message_from_bytes(METADATA.read_bytes())
    made = Path(folder, f"{metadata['Name']}-{metadata['Version']}.dist-info")
    made.mkdir()
    shutil.copy(METADATA, made / "METADATA")
    return made.name
