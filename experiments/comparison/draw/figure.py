"""A figure of a page: its key and drawings, and below them links to the drawing as a file and to its numbers. The links contain both files
as data URLs, so that a page that was sent by mail still has them, and no script is needed."""
import base64
import csv
import io
import re
from html import unescape

from markupsafe import Markup

from . import svg
from .style import PALETTE, PLOTS

KEY_ROW, GAP = 20, 14
# The parts of a figure's html that its file has: headings, entries of keys, drawings of the page's width.
PARTS = re.compile(r'<h[34]>(?P<heading>.*?)</h[34]>|<li data-[^>]*>(?P<mark><svg.*?</svg>)(?P<entry>.*?)</li>|'
                   r'<div class="on-page">(?P<wide>.*?)</div>|<div class="on-phone">.*?</div>|(?P<small><svg viewBox.*?</svg>)', re.S)


def stacked(html):
    """(height, SVG) of a figure's html: its parts from top to bottom, with the entries of a key in one row."""
    out, y, x = [], 0, 0
    for part in PARTS.finditer(html):
        if part["entry"]:
            words = unescape(part["entry"])
            room = 34 + svg.text_width(words, "value") + 14
            if x and x + room > svg.WIDE:
                x, y = 0, y + KEY_ROW
            out += [svg.place(part["mark"], x, y + 5)[1], svg.text_at("value", x + 34, y + 14, words)]
            x += room
            continue
        y, x = y + (KEY_ROW + 6 if x else 0), 0   # on-phone: nothing follows
        if part["heading"]:
            out.append(svg.text_at("group", 0, y + 14, unescape(part["heading"])))
            y += KEY_ROW
        for drawing in re.findall(r"<svg.*?</svg>", part["wide"] or part["small"] or "", re.S):
            height, placed = svg.place(drawing, 0, y)
            out.append(placed)
            y += height + GAP
    return y + (KEY_ROW if x else 0), "".join(out)


def link(words, name, kind, text):
    data = base64.b64encode(text.encode()).decode()
    return Markup('<a download="{}" href="data:{};base64,{}">{}</a>').format(name, kind, data, words)


def figure(name, title, html, rows):
    """The inside of a figure: html, its key and drawings, and the links. name: of the files, without an ending; rows: the numbers that
    are drawn, their heading first."""
    height, body = stacked(html)
    whole = svg.file_text(svg.WIDE, height, title, PALETTE + PLOTS, body)
    numbers = io.StringIO()
    csv.writer(numbers, lineterminator="\n").writerows(rows)
    return html + Markup('<p class="get">{} {}</p>').format(link("SVG", name + ".svg", "image/svg+xml", whole), link("CSV", name + ".csv", "text/csv", numbers.getvalue()))
