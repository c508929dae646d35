#!/usr/bin/env python3
"""Draws ops/monitoring/dashboard.json, as a Prometheus has its figures, for docs/img/dashboard.svg.

    prometheus --config.file=ops/monitoring/prometheus.yml    # with the addresses of a fleet that is used
    ops/dev/dashboard.py http://127.0.0.1:9090 --minutes 10 > docs/img/dashboard.svg

Grafana shows the same panels; this needs nothing but Python.
"""

import argparse
import json
import math
import pathlib
import sys
import time
import urllib.parse
import urllib.request
from xml.sax.saxutils import escape

DASHBOARD = pathlib.Path(__file__).parents[1] / "monitoring" / "dashboard.json"
# A cell of the dashboard's grid, in pixels, and the room around and within panels.
CELL, ROW, GAP, PAD = 42, 30, 6, 10
COLOURS = ["#3b7dd8", "#e07b39", "#3a9d5d", "#b0479b", "#c9a227", "#7a6ff0", "#d64550", "#4aa8b5"]


def ask(prometheus, path, **parameters):
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def shown(value, unit):
    """A value as people read it."""
    if unit == "percentunit":
        return f"{value * 100:.0f} %"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{text}/s" if unit == "reqps" else text


def name_of(series, legend):
    for label, value in series["metric"].items():
        legend = legend.replace("{{" + label + "}}", value)
    return legend


class Panel:
    def __init__(self, panel):
        grid = panel["gridPos"]
        self.x, self.y = grid["x"] * CELL + GAP, grid["y"] * ROW + GAP
        self.width, self.height = grid["w"] * CELL - GAP, grid["h"] * ROW - GAP
        self.title, self.kind, self.targets = panel["title"], panel["type"], panel["targets"]
        self.unit = panel["fieldConfig"]["defaults"].get("unit", "short")

    def text(self, x, y, text, size=11, colour="#444", anchor="start", weight="normal"):
        return (f'<text x="{self.x + x:.0f}" y="{self.y + y:.0f}" font-size="{size}" fill="{colour}" '
                f'text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>')

    def draw(self, prometheus, start, end):
        yield (f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="4" '
               'fill="#fff" stroke="#d8dce2"/>')
        size = 11 if self.kind == "stat" else 12
        yield self.text(PAD, 18, self.title, size, "#222", weight="bold")
        if self.kind == "stat":
            found = ask(prometheus, "query", query=self.targets[0]["expr"], time=end)
            value = shown(float(found[0]["value"][1]), self.unit) if found else "–"
            yield self.text(self.width / 2, self.height / 2 + 24, value, 30, "#2b6cb0", "middle", "bold")
        else:
            yield from self.lines(prometheus, start, end)

    def lines(self, prometheus, start, end):
        drawn = []
        for target in self.targets:
            found = ask(prometheus, "query_range", query=target["expr"], start=start, end=end, step=10)
            for series in found:
                points = [(when, float(value)) for when, value in series["values"]]
                points = [(when, value) for when, value in points if math.isfinite(value)]
                if points:
                    drawn.append((name_of(series, target.get("legendFormat", "")), points))
        if not drawn:
            yield self.text(self.width / 2, self.height / 2, "no data", 12, "#999", "middle")
            return
        top = max(value for _, points in drawn for _, value in points) * 1.1 or 1
        legend = -(-len(drawn) // 3)
        left, right, upper, lower = 56, self.width - PAD, 30, self.height - 22 - 15 * legend
        across = lambda when: left + (when - start) / (end - start) * (right - left)
        down = lambda value: lower - value / top * (lower - upper)
        for part in range(4):
            value = top * part / 3
            yield (f'<line x1="{self.x + left}" x2="{self.x + right}" y1="{self.y + down(value):.1f}" '
                   f'y2="{self.y + down(value):.1f}" stroke="#eceff3"/>')
            yield self.text(left - 6, down(value) + 4, shown(value, self.unit), 10, "#777", "end")
        for part in range(5):
            when = start + (end - start) * part / 4
            clock = time.strftime("%H:%M", time.gmtime(when))
            yield self.text(across(when), lower + 13, clock, 10, "#777", "end" if part == 4 else "middle")
        for index, (name, points) in enumerate(drawn):
            colour = COLOURS[index % len(COLOURS)]
            path = " ".join(f"{self.x + across(when):.1f},{self.y + down(value):.1f}" for when, value in points)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
            x, y = left + index % 3 * (right - left) / 3, lower + 30 + 15 * (index // 3)
            yield (f'<rect x="{self.x + x:.0f}" y="{self.y + y - 8:.0f}" width="10" height="3" fill="{colour}"/>')
            yield self.text(x + 14, y, name, 10)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("prometheus", help="its URL")
    arguments.add_argument("--minutes", type=float, default=10, help="how much of the past is drawn")
    given = arguments.parse_args()
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [Panel(panel) for panel in dashboard["panels"]]
    width = max(panel.x + panel.width for panel in panels) + GAP
    height = max(panel.y + panel.height for panel in panels) + GAP
    end = int(time.time())
    start = end - int(given.minutes * 60)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
          'font-family="system-ui, sans-serif">')
    print(f'<title>{escape(dashboard["title"])}</title>')
    print(f'<rect width="{width}" height="{height}" fill="#f4f6f8"/>')
    for panel in panels:
        for line in panel.draw(given.prometheus, start, end):
            print(line)
    print("</svg>")


if __name__ == "__main__":
    sys.exit(main())
