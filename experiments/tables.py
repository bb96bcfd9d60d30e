"""Tables of text: aligned for the terminal, and as Markdown. Rows are lists of cells; the first `left` columns hold words, the others numbers."""


def aligned(rows, left):
    """The rows with each cell as wide as its column. A row of one cell is a heading, which may be wider."""
    wide = [max(len(str(cell)) for cell in column) for column in zip(*(row for row in rows if len(row) > 1))]
    return [[str(cell).ljust(w) if i < left else str(cell).rjust(w) for i, (cell, w) in enumerate(zip(row, wide))] for row in rows]


def text(rows, left=1):
    return "\n".join("  ".join(row).rstrip() for row in aligned(rows, left))


def markdown(rows, left=1):
    """The first row is the heading."""
    head, *body = aligned([[str(cell).replace("|", "\\|") for cell in row] for row in rows], left)
    rule = ["-" * (len(cell) + 2) if i < left else "-" * (len(cell) + 1) + ":" for i, cell in enumerate(head)]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "|".join(rule) + "|", *("| " + " | ".join(row) + " |" for row in body)])


def placed(text, mark, rows):
    """A page's text with its Markdown table between `<!-- MARK -->` and `<!-- end of MARK -->` made of these rows."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    before, rest = text.split(begin)
    return before + begin + markdown(rows) + "\n" + end + rest.split(end)[1]
