"""Prints the results: lines on the terminal, and a page for docs/results/, from the parts in the document."""
import tables

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


def group(part):
    return part["name"].split("-")[0]


def count(part, status):
    return sum(c["status"] == status for c in part["checks"])


# ---------------------------------------------------------------- figures as tables
def step_rows(figures):
    rows = [["model", "how", "B", "T", "tokens/s", "MFU, full", "causal", "wanted", "", "ms per step", "expected",
             "of the product", "GiB", "attention, GELU, bias gradient"]]
    for f in figures:
        ran = f.get("ran") or {}
        expected = f.get("expected_ms")
        rows.append([f["what"], f["way"], f["batch"], f["seq"], f"{f['tokens_per_second']:,.0f}", share(f.get("mfu_datasheet")),
                     share(f.get("mfu_datasheet_causal")), share(f["wanted"]), met(f), f"{1e3 * f['step_seconds']:.2f}",
                     f"{expected:,g}" if expected else "-", share(f.get("share_of_matmul")),
                     size((f.get("memory") or {}).get("ledger_peak_bytes")),
                     ", ".join(str(ran.get(k) or "-") for k in ("attention_forward", "gelu", "bias_grad"))])
    return rows


def operation_rows(figures):
    rows = [["operation", "shapes of", "shape", "us", "rate", "share", "of", "wanted", ""]]
    for f in figures:
        computes = "flops_per_second" in f
        rate = f"{f['flops_per_second'] / 1e12:.1f} TFLOP/s" if computes else f"{f['bytes_per_second'] / 1e9:.0f} GB/s"
        rows.append([f["what"], f["shapes_of"], f["shape"], f"{1e6 * f['seconds']:.1f}", rate,
                     share(f.get("share_of_matmul" if computes else "share_of_copy")), "matmul" if computes else "copy",
                     share(f.get("wanted")), met(f)])
    return rows


def peer_rows(figures):
    rows = [["model", "B", "T", "starring, tokens/s", "PyTorch, tokens/s", "ratio", "wanted", "", "GiB", "GiB, PyTorch"]]
    for f in figures:
        rows.append([f["what"], f["batch"], f["seq"], f"{f['starring']['tokens_per_second']:,.0f}",
                     f"{f['pytorch']['tokens_per_second']:,.0f}", f"{f['ratio']:.2f}", f"{f['wanted']:.2f}", met(f),
                     size(f["starring"]["peak_bytes"]), size(f["pytorch"]["peak_bytes"])])
    return rows


def fact_rows(figures):
    rows = [["", ""]]
    for f in figures:
        if f["what"] == "library":
            rows.append([f["file"], f["missing"] or f"{f['folder'] or 'the loader'} ({f['found_in']})"])
        else:
            rows += [[f"{f['what']}: {k}", v] for k, v in f.items() if k != "what"]
    return rows


def plain_rows(figures):
    keys = list(dict.fromkeys(k for f in figures for k, v in f.items() if not isinstance(v, (dict, list))))
    return [keys] + [[cell(f.get(k)) for k in keys] for f in figures]


def cell(value):
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def collective_rows(figures):
    rows = [["where", "operation", "size", "type", "redop", "place", "us", "algbw GB/s", "busbw GB/s", "#wrong"]]
    largest = {w: max(f["size"] for f in figures if f["what"] == w) for w in {f["what"] for f in figures}}
    for f in figures:
        if f["size"] not in (0, largest[f["what"]]):
            continue  # the others are in the JSON document
        rows.append([f["what"], f["operation"], f["size"], f["type"], f["redop"], f["place"].replace("_", " "),
                     f"{1e6 * f['seconds']:.1f}", f"{f['algorithm_bytes_per_second'] / 1e9:.2f}",
                     f"{f['bus_bytes_per_second'] / 1e9:.2f}", f["wrong"]])
    return rows


ROWS = {"facts": fact_rows, "collectives": collective_rows, "step": step_rows, "accumulation": step_rows, "choices": step_rows,
        "kernels": operation_rows, "peers": peer_rows}


def rows_of(part):
    return ROWS.get(group(part), plain_rows)(part["figures"]) if part["figures"] else []


# ---------------------------------------------------------------- one part
def mark(part):
    return MARK[part["status"]] if part["finished"] or part["status"] == FAILED else "cut short"


def verdict(part):
    counts = f"{count(part, PASSED)} passed, {count(part, FAILED)} failed, {count(part, SKIPPED)} skipped"
    return f"{mark(part):<8}{part['name']:<14}{counts:<36}{part['seconds']:6.1f} s  {part['title']}"


def troubles(part):
    found = [f"{MARK[c['status']]}: {c['name']}" + (f": {c['why']}" if c.get("why") else "")
             for c in part["checks"] if c["status"] != PASSED]
    return found + [f"finding: {text}" for text in part["findings"]]


def part_text(part):
    """The lines for the terminal when a part is over."""
    lines = [verdict(part)] + ["          " + t for t in troubles(part)] + ["          " + n for n in part["notes"]]
    if part["figures"]:
        lines += ["  " + line for line in tables.text(rows_of(part), 2).splitlines()]
    return "\n".join(lines)


# ---------------------------------------------------------------- the page
def head(document):
    facts, parts = document["device"], document["parts"]
    libraries = dict.fromkeys(", ".join(f"{words} {p.get('libraries', {}).get(key)}" for key, words in
                                        (("runtime", "CUDA"), ("cublaslt", "cuBLASLt"), ("cudnn", "cuDNN"))) for p in parts)
    return [f"# {facts.get('name', 'GPU')}, {document['when'][:10]}", "",
            *dict.fromkeys(f"    {p['command']}" for p in parts), "",
            f"{document['when']}, {document['seconds']:.0f} s; compute capability {facts.get('compute_capability')}, driver "
            f"{document['identity'].get('driver')}, {'; '.join(libraries)}; "
            f"starring {document['versions'].get('starring') or 'of unknown revision'}, build {document['identity'].get('build')}; "
            f"{document['host']}.", "",
            *[f"- finding, {text}" for text in document["findings"]], *[""] * bool(document["findings"])]


def page(document):
    """The page as Markdown."""
    parts = document["parts"]
    lines = head(document) + [tables.markdown([["part", "result", PASSED, FAILED, SKIPPED, "seconds"], *(
        [p["title"], mark(p), *(count(p, status) for status in (PASSED, FAILED, SKIPPED)), f"{p['seconds']:.1f}"] for p in parts)], 2)]
    for part in parts:
        said = part["notes"] + troubles(part)
        if part["figures"] or said:
            lines += ["", f"## {part['title']}", ""]
            lines += [f"- {text}" for text in said]
            lines += [""] * bool(said and part["figures"]) + ([tables.markdown(rows_of(part), 2)] if part["figures"] else [])
    return "\n".join(lines).rstrip() + "\n"
