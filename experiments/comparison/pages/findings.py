"""The five sentences that begin the report: bits, loss, memory, bytes, speed."""
from .. import equality, speed, table
from ..runs import as_float, device_bytes
from ..spread import median

MIB = table.MIB


def brief(names):
    """Joins the names of one sweep's points: ["a", "b n=1", "b n=2"] becomes ["a", "b n=1/2"]."""
    out = {}
    for name in names:
        head, eq, value = name.rpartition("=")
        out.setdefault(head + eq or name, []).append(value)
    return [head + "/".join(values) if head.endswith("=") else head for head, values in out.items()]


def listed(names):
    """"a, b and c"; separated by semicolons if a name contains a comma, as the values of a sweep may."""
    names = brief(dict.fromkeys(names))
    comma = ";" if any("," in name for name in names) else ","
    return names[0] if len(names) == 1 else f"{f'{comma} '.join(names[:-1])} and {names[-1]}"


def ends(groups, read, text):
    """"26.68 (ps:sync) to 85.94 (local)", as printed; None if no group has a value. All labels at one end are named."""
    values = [(g[0].label, median(map(read, g))) for g in groups]
    shown = [(v, text.format(v), label) for label, v in values if v is not None]
    if not shown:
        return None
    low, high = min(shown)[1], max(shown)[1]
    at = {end: listed(label for _, words, label in shown if words == end) for end in (low, high)}
    return f"{low} in all runs" if low == high and len(shown) > 1 else low if low == high else f"{low} ({at[low]}) to {high} ({at[high]})"


def worker(run):
    return run.roles().get("worker")


def agree(pairs):
    """A sentence on whether the predictions were right. pairs: [(label, predicted, measured)]."""
    wrong = dict.fromkeys(label for label, predicted, measured in pairs
                          if isinstance(predicted, (int, float)) and isinstance(measured, (int, float)) and abs(predicted - measured) >= 0.5)
    return f"not as predicted in {listed(wrong)}" if wrong else "as predicted, to the byte"


def of_bits(groups):
    seeds = equality.by_seed([run for group in groups for run in group])
    said = list(dict.fromkeys(of_one_seed(runs, len(seeds) == 1) for runs in seeds.values()))
    if len(seeds) == 1:
        return said[0]
    return f"For each of {len(seeds)} seeds: {said[0]}" if len(said) == 1 else "Which runs end in the same bits depends on the seed; see below."


def of_one_seed(runs, with_hash):
    alike = sorted(equality.equal_groups(runs), key=len, reverse=True)
    if len(runs) == 1:
        return f"The weights end as {runs[0].weights_hash}." if with_hash else "one run."
    if len(alike[0]) == 1:
        return "No two runs end in the same bits."
    names = " = ".join(brief(equality.names(alike[0], runs)))
    others = equality.names([run for group in alike[1:] for run in group], runs)
    tail = f"; {listed(others)} end{'s' * (len(set(others)) == 1)} in others" if others else ""
    which = f" ({alike[0][0].weights_hash})" if with_hash else ""
    return f"{names}: the same bits, each loss and all weights{which}{tail}."


def of_loss(groups):
    held_out = ends(groups, lambda r: r.val_loss, "{:.4f}")
    entropy = next((r.unigram_entropy for g in groups for r in g if isinstance(r.unigram_entropy, (int, float))), None)
    known = f" A model that knows only the token frequencies has a loss of {entropy:.4f}." if entropy else ""
    if held_out:
        return f"On held-out text, in nats per token: {held_out}.{known}"
    apart = {}
    for run in (g[0] for g in groups):
        apart.setdefault(run.get("explained", "loss_of") or "the global batch", []).append(run.label)
    whose = "".join(f" The loss of {listed(labels)} is of {of}." for of, labels in apart.items() if of != "the global batch")
    return f"At the last step, in nats per token: {ends(groups, lambda r: as_float(r.losses[-1]), '{:.4f}')}.{whose}{known}"


def of_memory(groups):
    one = ends(groups, lambda r: device_bytes(worker(r)["peak"]) / MIB if worker(r) else None, "{:,.2f}")
    job = ends(groups, lambda r: v / MIB if (v := r.get("totals", "memory_bytes")) is not None else None, "{:,.2f}")
    pairs = [(r.label, device_bytes(e["predicted"]), device_bytes(e["peak"])) for g in groups for r in g for e in r.memory or []]
    return f"A worker holds, in MiB: {one or 'unknown'}; the whole job: {job or 'unknown'}; {agree(pairs)}."


def of_bytes(groups):
    talk = [g for g in groups if g[0].kind != "local"]
    if not talk:
        return "One process sends nothing."
    one = ends(talk, lambda r: v / MIB if (v := (r.wire_of("worker") or {}).get("sent_per_step")) is not None else None, "{:,.2f}")
    job = ends(talk, lambda r: v / MIB if (v := r.get("totals", "sent_per_step")) is not None else None, "{:,.2f}")
    pairs = [(r.label, w.get(f"predicted_{what}"), w.get(measured)) for g in groups for r in g for w in r.wire or []
             for what, measured in (("sent", "sent_per_step"), ("received", "received_per_step"))]
    return f"A worker sends each step, in MiB: {one or 'unknown'}; the whole job: {job or 'unknown'}; {agree(pairs)}."


def of_speed(groups):
    every, said = speed.speeds_of(groups), speed.in_short(groups)
    rate = ends(groups, lambda r: r.tokens_per_second, "{:,.0f}")
    times = {id(s.group): s.time.value for s in every if s.time}
    if len(groups) == 1 or not said:
        said = [f"Tokens/s: {every[0].text if len(groups) == 1 else rate}." if rate else "No run has a speed.", *said]
    elif len(times) > speed.FEW and len({s.reference[0].label for s in every if s.time}) == 1:   # if there are few, each ratio has a sentence of its own
        reference = next(s.reference[0].label for s in every if s.time)
        told = [g for g in groups if id(g) in times]
        span = ends(told, lambda r: next(times[id(g)] for g in told if r in g), "{:.2f}")
        said = [f"Time per token over that of {reference}: {span}.", *said]
    return " ".join(said)


def of_trouble(groups):
    """Sentences on the roles that were made slow on purpose, and on the share of waiting that they caused; "" if there are none."""
    made = list(dict.fromkeys(filter(None, (g[0].get("trouble", "text") for g in groups))))
    waits = [f"{share} of {g[0].label}'s waiting was for {name}" for g in groups for name, share in [table.waited_most(g[0])] if name != table.DASH]
    return "".join(f" {text[0].upper()}{text[1:]}." for text in made) + (f" {'; '.join(waits)}." if made and waits else "")


def five(groups):
    """[(what it is about, sentence)]"""
    return [("Bits", of_bits(groups)), ("Loss", of_loss(groups)), ("Memory", of_memory(groups)), ("Bytes", of_bytes(groups)),
            ("Speed", of_speed(groups) + of_trouble(groups))]
