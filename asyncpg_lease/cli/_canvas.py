"""A drawing surface that becomes one self-contained SVG, in light and in dark."""

from string import Template
from xml.etree import ElementTree as ET

Four = tuple[float, float, float, float]

_FONT = """
svg { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
text { paint-order: stroke; stroke-width: 5px; stroke-linejoin: round; }
text.on { stroke: none; }
.heading { font-size: 20px; font-weight: 600; }
.name, .good, .bad, .stale-word { font-weight: 600; }
.fence { font-weight: 700; }
.forsaken-line { stroke-width: 4; }
.away-line { stroke-width: 2; opacity: 0.4; }
.paused { stroke-width: 2.5; stroke-dasharray: 3 4; }
.write { stroke-width: 1.5; opacity: 0.7; }
.mark-line { stroke-width: 1.5; }
.passed { stroke-width: 1.5; stroke-dasharray: 2 3; }
.refused, .accepted { stroke-width: 3.5; stroke-linecap: round; }
"""
_COLOURS = Template("""
text { fill: $text; stroke: $lane; }
.heading, .verdict, .dim { stroke: $back; }
.back { fill: $back; stroke: $edge; }
.lane { fill: $lane; }
.grid { stroke: $edge; }
.dim { fill: $dim; }
.on { fill: $back; }
.good, .held, .released, .refused-word { fill: $good; }
.bad, .accepted-word { fill: $bad; }
.forsaken-back { fill: $back; }
.forsaken { fill: url(#forsaken); stroke: $late; }
.forsaken-line { stroke: $late; }
.ran-out { fill: $late; }
.away { fill: url(#away); }
.away-line { stroke: $bad; }
.paused { stroke: $gone; }
.lost { fill: $gone; }
.write { stroke: $back; }
.mark { fill: $mark; }
.mark-line { stroke: $mark; }
.refused { stroke: $good; }
.accepted { stroke: $bad; }
.passed { stroke: $dim; }
""")
_LIGHT = {
    "back": "#ffffff",
    "lane": "#f6f8fa",
    "edge": "#d1d9e0",
    "text": "#1f2328",
    "dim": "#59636e",
    "good": "#1a7f37",
    "late": "#9a6700",
    "gone": "#8250df",
    "bad": "#cf222e",
    "mark": "#0969da",
}
_DARK = {
    "back": "#0d1117",
    "lane": "#161b22",
    "edge": "#30363d",
    "text": "#e6edf3",
    "dim": "#9198a1",
    "good": "#3fb950",
    "late": "#d29922",
    "gone": "#b083f0",
    "bad": "#ff7b72",
    "mark": "#58a6ff",
}


class Canvas:
    """Collects shapes; the classes that they are given have their colours here.

    Args:
        width: in pixels, where the picture is shown at its own size.
        height: likewise.
        title: what the picture is, in some words.
        description: what it shows, for those who do not see it.
    """

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self._svg = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {width:g} {height:g}",
                "width": f"{width:g}",
                "height": f"{height:g}",
                "role": "img",
                "aria-labelledby": "title desc",
            },
        )
        ET.SubElement(self._svg, "title", id="title").text = title
        ET.SubElement(self._svg, "desc", id="desc").text = description
        dark = _COLOURS.substitute(_DARK)
        style = f"{_FONT}{_COLOURS.substitute(_LIGHT)}@media (prefers-color-scheme: dark) {{{dark}}}\n"
        ET.SubElement(self._svg, "style").text = style
        definitions = ET.SubElement(self._svg, "defs")
        for name in ("forsaken", "away"):
            _hatch(definitions, name)

    def __repr__(self) -> str:
        return f"<Canvas of {len(self._svg)} elements>"

    def to_svg(self) -> str:
        """Write the picture down."""
        ET.indent(self._svg, " ")
        return ET.tostring(self._svg, encoding="unicode") + "\n"

    def rect(self, box: Four, style: str, *, corner: float = 0, tip: str = "") -> None:
        """Draw a rectangle, x, y, width, height; the tip is shown where the pointer rests on it."""
        numbers = dict(zip(("x", "y", "width", "height"), box, strict=True))
        self._add("rect", numbers | {"rx": corner}, style, tip)

    def line(self, ends: Four, style: str, *, tip: str = "") -> None:
        """Draw a line, x and y of both ends."""
        self._add("line", dict(zip(("x1", "y1", "x2", "y2"), ends, strict=True)), style, tip)

    def cross(self, x: float, y: float, reach: float, style: str, *, tip: str = "") -> None:
        """Draw a cross around a place."""
        self.line((x - reach, y - reach, x + reach, y + reach), style, tip=tip)
        self.line((x - reach, y + reach, x + reach, y - reach), style, tip=tip)

    def triangle(self, x: float, y: float, size: float, style: str, *, tip: str = "") -> None:
        """Draw a triangle that points down at a place."""
        points = f"{x - size:.1f},{y - size * 1.5:.1f} {x + size:.1f},{y - size * 1.5:.1f} {x:.1f},{y:.1f}"
        self._add("polygon", {}, style, tip).set("points", points)

    def text(self, x: float, y: float, text: str, style: str, *, anchor: str = "start") -> None:
        """Write a text."""
        element = self._add("text", {"x": x, "y": y}, style, "")
        element.text = text
        if anchor != "start":
            element.set("text-anchor", anchor)

    def _add(self, tag: str, numbers: dict[str, float], style: str, tip: str) -> ET.Element:
        attributes = {name: f"{number:.1f}".removesuffix(".0") for name, number in numbers.items()}
        element = ET.SubElement(self._svg, tag, attributes | {"class": style})
        if tip:
            ET.SubElement(element, "title").text = tip
        return element


def _hatch(definitions: ET.Element, name: str) -> None:
    pattern = ET.SubElement(
        definitions,
        "pattern",
        id=name,
        width="8",
        height="8",
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    ET.SubElement(pattern, "line", {"x1": "2", "y1": "0", "x2": "2", "y2": "8", "class": f"{name}-line"})
