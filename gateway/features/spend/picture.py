"""The report on savings as a PNG. Pillow draws it: the extra `report`, imported by `nearhit report --png` alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from io import BytesIO
from typing import Any

from gateway.errors import StartupError
from gateway.features.spend.digest import tiles

WIDTH, MARGIN, COLUMNS = 1_000, 30, 3  # pixels
TILE_HEIGHT, GAP, HEAD = 130, 16, 90
BACK, PANEL, TEXT, QUIET = "#ffffff", "#f2f5f3", "#16201b", "#58645e"


def png(found: Mapping[str, Any], more: Iterable[tuple[str, str, str]] = ()) -> bytes:
    """Return a `SavingsReport` as a picture. `more` are further figures. Raise `StartupError` without Pillow."""
    try:
        image_module, draw_module, font_module = (
            import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")
        )
    except ImportError:
        raise StartupError("--png needs Pillow: pip install 'nearhit[report]'") from None
    figures = [*tiles(found), *more]
    rows = -(-len(figures) // COLUMNS)
    image = image_module.new("RGB", (WIDTH, HEAD + rows * (TILE_HEIGHT + GAP) + MARGIN - GAP), BACK)
    draw = draw_module.Draw(image)
    fonts = {size: font_module.load_default(size) for size in (14, 16, 26, 30)}

    def write(x: float, y: float, text: str, size: int, fill: str, room: float) -> None:
        """Write a line, in a smaller size if it needs more room, and at last without its end."""
        font = fonts[size]
        if draw.textlength(text, font=font) > room:
            font = fonts[14]
        while len(text) > 1 and draw.textlength(text, font=font) > room:
            text = text[:-1]
        draw.text((x, y), text, font=font, fill=fill)

    room = WIDTH - 2 * MARGIN
    write(MARGIN, 18, "What nearhit saved", 26, TEXT, room)
    write(MARGIN, 54, f"{found['since'][:10]} to {found['until'][:10]} (UTC)", 16, QUIET, room)
    width = (room - (COLUMNS - 1) * GAP) / COLUMNS
    for number, (name, value, note) in enumerate(figures):
        left = MARGIN + number % COLUMNS * (width + GAP)
        top = HEAD + number // COLUMNS * (TILE_HEIGHT + GAP)
        draw.rounded_rectangle((left, top, left + width, top + TILE_HEIGHT), radius=8, fill=PANEL)
        write(left + 16, top + 14, name, 16, QUIET, width - 32)
        write(left + 16, top + 42, value, 30, TEXT, width - 32)
        write(left + 16, top + 94, note, 14, QUIET, width - 32)
    out = BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()
