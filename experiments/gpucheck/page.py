"""The results for people: lines on the terminal, and a page for docs/results/."""
from .work import FAILED, PASSED, SKIPPED

MARK = {PASSED: "ok", FAILED: "FAILED", SKIPPED: "skipped"}


def met(figure):
    if figure.get("met") is None:
        return ""
    return "reached" if figure["met"] else "missed"


def share(value):
    return f"{100 * value:.1f}%" if isinstance(value, (int, float)) else "-"


def size(value):
    return f"{value / 2**30:.1f}" if isinstance(value, (int, float)) else "-"


def step_rows(part):
    rows = [["model", "B", "T", "ms per step", "tokens/s", "MFU, datasheet", "wanted", "", "of the matrix product", "GiB"]]
    for f in part.figures:
        rows.append([f["what"], f["batch"], f["seq"], f"{1e3 * f['step_seconds']:.2f}", f"{f['tokens_per_second']:,.0f}",
                     share(f.get("mfu_datasheet")), share(f["wanted"]), met(f), share(f.get("share_of_matmul")),
                     size((f.get("memory") or {}).get("ledger_peak_bytes"))])
    return rows


def operation_rows(part):
    rows = [["operation", "shape", "us", "rate", "share", "of", "wanted", ""]]
    for f in part.figures:
        computes = "flops_per_second" in f
        rate = f"{f['flops_per_second'] / 1e12:.1f} TFLOP/s" if computes else f"{f['bytes_per_second'] / 1e9:.0f} GB/s"
        rows.append([f["what"], f["shape"], f"{1e6 * f['seconds']:.1f}", rate,
                     share(f.get("share_of_matmul" if computes else "share_of_copy")), "matmul" if computes else "copy",
                     share(f.get("wanted")), met(f)])
    return rows


def peer_rows(part):
    rows = [["model", "B", "T", "starring, tokens/s", "PyTorch, tokens/s", "ratio", "wanted", "", "GiB", "GiB, PyTorch"]]
    for f in part.figures:
        rows.append([f["what"], f["batch"], f["seq"], f"{f['starring']['tokens_per_second']:,.0f}",
                     f"{f['pytorch']['tokens_per_second']:,.0f}", f"{f['ratio']:.2f}", f"{f['wanted']:.2f}", met(f),
                     size(f["starring"]["peak_bytes"]), size(f["pytorch"]["peak_bytes"])])
    return rows


def fact_rows(part):
    return [["", ""]] + [[f"{f['what']}: {k}", v] for f in part.figures for k, v in f.items() if k != "what"]


def plain_rows(part):
    keys = list(dict.fromkeys(k for f in part.figures for k, v in f.items() if not isinstance(v, (dict, list))))
    return [keys] + [[cell(f.get(k)) for k in keys] for f in part.figures]


def cell(value):
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def collective_rows(part):
    rows = [["where", "operation", "size", "type", "redop", "place", "us", "algbw GB/s", "busbw GB/s", "#wrong"]]
    largest = {w: max(f["size"] for f in part.figures if f["what"] == w) for w in {f["what"] for f in part.figures}}
    for f in part.figures:
        if f["size"] not in (0, largest[f["what"]]):
            continue  # the others are in the JSON document
        rows.append([f["what"], f["operation"], f["size"], f["type"], f["redop"], f["place"].replace("_", " "),
                     f"{1e6 * f['seconds']:.1f}", f"{f['algorithm_bytes_per_second'] / 1e9:.2f}",
                     f"{f['bus_bytes_per_second'] / 1e9:.2f}", f["wrong"]])
    return rows


ROWS = {"device": fact_rows, "collectives": collective_rows, "steps": step_rows, "bench": operation_rows, "peers": peer_rows}


def rows_of(part):
    return ROWS.get(part.name, plain_rows)(part) if part.figures else []


def aligned(rows):
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(str(c).ljust(w) if i < 2 else str(c).rjust(w) for i, (c, w) in enumerate(zip(r, widths))).rstrip()
            for r in rows]


def markdown(rows):
    lines = ["| " + " | ".join(str(c).replace("|", "\\|") for c in r) + " |" for r in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def verdict(part):
    counts = f"{part.count(PASSED)} passed, {part.count(FAILED)} failed, {part.count(SKIPPED)} skipped"
    return f"{MARK[part.status]:<8}{part.name:<12}{counts:<36}{part.seconds:6.1f} s  {part.title}"


def troubles(part):
    return [f"{MARK[c['status']]}: {c['name']}" + (f": {c['why']}" if c.get("why") else "")
            for c in part.checks if c["status"] != PASSED]


def tell(part):
    """What the terminal gets when a part is over."""
    lines = [verdict(part)] + ["          " + t for t in troubles(part)] + ["          " + n for n in part.notes]
    if part.figures:
        lines += aligned(rows_of(part))
    return "\n".join(lines)


def page(document, parts):
    """The page as Markdown."""
    facts = document["device"]
    lines = [f"# {facts.get('name', 'GPU')}, {document['when'][:10]}", "",
             f"    {document['command']}", "",
             f"{document['when']}, {document['seconds']:.0f} s; compute capability {facts.get('compute_capability')}, driver "
             f"{facts.get('driver')}, CUDA {facts.get('runtime')}, cuBLASLt {facts.get('cublaslt')}, cuDNN {facts.get('cudnn')}; "
             f"starring {document['versions'].get('starring') or 'of unknown revision'}; {document['host']}.", "",
             "| part | result | passed | failed | skipped | seconds |", "|---|---|---|---|---|---|"]
    lines += [f"| {p.title} | {MARK[p.status]} | {p.count(PASSED)} | {p.count(FAILED)} | {p.count(SKIPPED)} | {p.seconds:.1f} |"
              for p in parts]
    for part in parts:
        if part.figures or part.notes or troubles(part):
            lines += ["", f"## {part.title}", ""]
            lines += [f"- {n}" for n in part.notes + troubles(part)]
            lines += [""] * bool((part.notes or troubles(part)) and part.figures) + (markdown(rows_of(part)) if part.figures else [])
    return "\n".join(lines).rstrip() + "\n"
