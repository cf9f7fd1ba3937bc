"""HEIC photos, which Pillow reads where pillow-heif is installed."""

from __future__ import annotations

import functools


@functools.cache
def can_read_heic() -> bool:
    """Tell whether pillow-heif is here; Pillow then opens HEIC files as any other."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True
