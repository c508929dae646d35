#!/usr/bin/env python3
"""Draws what a terminal shows, for docs/img/up.svg.

    tmux capture-pane -e -p -S - | ops/dev/terminal.py 'title' > docs/img/up.svg
"""

import re
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, PAD, BAR = 8.4, 19, 16, 30
# The palette; bright colours look like the others.
COLOURS = ["#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4"]
TEXT, GROUND, FAINT = "#c9d1d9", "#0d1117", "#8b949e"


def style(codes, now):
    """What is in force after an escape sequence: colour, weight."""
    colour, weight = now
    if codes[:2] == [38, 5]:  # by its place in the palette
        return COLOURS[codes[2] % 8], weight
    for code in codes:
        if code == 0:
            colour, weight = TEXT, "normal"
        elif code == 1:
            weight = "bold"
        elif code == 2:
            colour = FAINT
        elif code == 22:
            colour, weight = TEXT, "normal"
        elif code == 39:
            colour = TEXT
        elif 30 <= code < 38 or 90 <= code < 98:
            colour = COLOURS[code % 10]
    return colour, weight


def spans(line, now):
    """Runs of one style: column, text, style; and the style at the end of the line."""
    runs, column = [], 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if sequence := re.fullmatch(r"\x1b\[([0-9;]*)m", part):
            now = style([int(code or 0) for code in sequence[1].split(";")], now)
        elif part:
            runs.append((column, part, now))
            column += len(part)
    return runs, now


def draw(title, lines):
    columns = max([len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines] + [60])
    width, height = 2 * PAD + columns * WIDTH, BAR + 2 * PAD + len(lines) * HEIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace" font-size="14">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>',
        *(f'<circle cx="{20 + 18 * n}" cy="18" r="5" fill="{COLOURS[code]}"/>' for n, code in enumerate((1, 3, 2))),
        f'<text x="50%" y="22" text-anchor="middle" fill="{FAINT}" font-size="12">{escape(title)}</text>',
    ]
    now = (TEXT, "normal")
    for row, line in enumerate(lines):
        runs, now = spans(line, now)
        y = BAR + PAD + row * HEIGHT + 12
        for column, text, (colour, weight) in runs:
            if text.strip():
                # Each run is as wide as its columns, whatever font is there.
                out.append(
                    f'<text x="{PAD + column * WIDTH:.1f}" y="{y}" fill="{colour}" font-weight="{weight}" '
                    f'textLength="{len(text) * WIDTH:.1f}" xml:space="preserve">{escape(text)}</text>'
                )
    return "\n".join([*out, "</svg>\n"])


if __name__ == "__main__":
    shown = sys.stdin.read().rstrip("\n").split("\n")
    sys.stdout.write(draw(sys.argv[1], [line.rstrip() for line in shown]))
