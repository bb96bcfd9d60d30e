"""Tables of text: aligned for the terminal, and as Markdown. Rows are lists of cells; the first `left` columns hold text, the others numbers."""


def aligned(rows, left):
    """Pads each cell to the width of its column. The widths ignore rows of one cell: these are headings."""
    wide = [max(len(str(cell)) for cell in column) for column in zip(*(row for row in rows if len(row) > 1))]
    return [[str(cell).ljust(w) if i < left else str(cell).rjust(w) for i, (cell, w) in enumerate(zip(row, wide))] for row in rows]


def text(rows, left=1):
    return "\n".join("  ".join(row).rstrip() for row in aligned(rows, left))


def markdown(rows, left=1):
    """A Markdown table; the first row is its heading."""
    head, *body = aligned([[str(cell).replace("|", "\\|") for cell in row] for row in rows], left)
    rule = ["-" * (len(cell) + 2) if i < left else "-" * (len(cell) + 1) + ":" for i, cell in enumerate(head)]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "|".join(rule) + "|", *("| " + " | ".join(row) + " |" for row in body)])


def placed(text, mark, rows):
    """The text of a page in which a table of these rows replaces everything between `<!-- MARK -->` and `<!-- end of MARK -->`."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    before, rest = text.split(begin)
    return before + begin + markdown(rows) + "\n" + end + rest.split(end)[1]
