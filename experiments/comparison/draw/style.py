"""The report's style sheet, and its script. Curve colours follow Okabe and Ito (2008), readable by colour-blind people;
each mode has its own shades. Everything is in the file: no font, script or picture is fetched. A phone of 360
pixels gets drawings of its own; what cannot be narrower (tables) scrolls inside its box."""
from .svg import FONT

# A click on an entry of a key, or a key press, hides or shows its series in all drawings of the figure. Without scripts everything
# else on the page works.
SCRIPT = """document.documentElement.classList.add("live");
document.querySelectorAll("figure .legend li").forEach(function (entry) {
  var of = entry.dataset, figure = entry.closest("figure");
  var shown = figure.querySelectorAll(of.line ? 'g[data-line="' + CSS.escape(of.line) + '"]'
                                              : "svg:not(.key) ." + of.class);
  function toggle() {
    var off = entry.classList.toggle("off");
    entry.setAttribute("aria-pressed", String(!off));
    shown.forEach(function (part) { part.classList.toggle("gone", off); });
  }
  entry.tabIndex = 0;
  entry.title = "hide or show";
  entry.setAttribute("role", "button");
  entry.setAttribute("aria-pressed", "true");
  entry.addEventListener("click", toggle);
  entry.addEventListener("keydown", function (event) {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle();
  });
});
"""

PALETTE = """:root{--ink:#1d2530;--soft:#5b6675;--page:#fff;--card:#f4f6f9;--line:#dce1e8;--grid:#e6eaf0;--accent:#0b66b5;
--good:#14694a;--goodbg:#e7f5ee;--plain:#5a4a00;--plainbg:#fbf5dd;--bad:#a3151c;--badbg:#fdeaea;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b3559a;--c4:#9a7d00;--c5:#3a9fd6;--c6:#6b4fbb;--c7:#555f6b;
--m0:#0072b2;--m1:#56b4e9;--m2:#d55e00;--m3:#e69f00;--m4:#009e73;--m5:#b3559a;--m6:#8a94a3;--m7:#6b4fbb;--m8:#8a5a2b}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#a2adbb;--page:#12161c;--card:#1b212a;
--line:#323b47;--grid:#262e39;--accent:#63b3f5;--good:#6fdca9;--goodbg:#13291f;--plain:#ead58a;--plainbg:#2a2511;
--bad:#ff8f8f;--badbg:#34171a;--c0:#56b4e9;--c1:#f08a3c;--c2:#3cc79d;--c3:#dd8cc8;--c4:#d8c14a;--c5:#9ad2f2;
--c6:#a893ee;--c7:#9aa5b3;--m0:#3d9bd6;--m1:#9ad2f2;--m2:#e8803a;--m3:#f2c05c;--m4:#3cc79d;--m5:#dd8cc8;--m6:#8e99a8;
--m7:#a893ee;--m8:#c99a63}}
"""

PLOTS = """
.grid{stroke:var(--grid)}.tick,.axis{fill:var(--soft)}.value,.group{fill:var(--ink)}.group{font-weight:600}
.curve{fill:none;stroke-width:2.2;stroke-linejoin:round}.raw{fill:none;stroke-width:1;opacity:.28}.range{fill:none;stroke-width:1.4;opacity:.6}
.band{stroke:none!important;opacity:.2}.level{stroke:var(--soft);stroke-width:1.4;stroke-dasharray:2 4;fill:none}
.idle,.fill.idle{fill:var(--line);stroke:none}.mark{stroke:var(--ink);stroke-width:2.5;fill:none}
.hollow{fill-opacity:.16;stroke-width:1.5}.dot{fill:var(--card);stroke-width:2}
""" + "".join(
    f".c{i}{{stroke:var(--c{i})}}.band.c{i}{{fill:var(--c{i})}}.level.c{i}{{stroke:var(--c{i})}}.fill.c{i}{{fill:var(--c{i});stroke:none}}.hollow.c{i}{{fill:var(--c{i})}}"
    for i in range(8)) + "".join(f".m{i}{{fill:var(--m{i})}}.hollow.m{i}{{stroke:var(--m{i})}}" for i in range(9)) + "".join(
        f".{css}{{font-size:{size}px}}" for css, size in FONT.items())

CSS = PALETTE + """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:1000px;margin:0 auto;padding:26px 24px 60px;overflow-wrap:break-word}
h1{font-size:2rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:1.3rem;margin:30px 0 6px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:1.05rem;margin:28px 0 4px}
p{max-width:46rem;margin:8px 0 12px}
a{color:var(--accent)}
.lead{font-size:1.1rem;color:var(--soft)}
.facts{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 0 16px;padding:0;list-style:none}
.facts b{font-weight:600}.facts span{color:var(--soft);font-size:.88rem}
.word{border-left:4px solid;border-radius:6px;padding:10px 14px;margin:10px 0;max-width:60rem;overflow-wrap:anywhere}
.word.equal{border-color:var(--good);background:var(--goodbg)}
.word.differs{border-color:var(--plain);background:var(--plainbg)}
.word.broken{border-color:var(--bad);background:var(--badbg);font-weight:600}
.word b{margin-right:6px}
.equal b{color:var(--good)}.differs b{color:var(--plain)}.broken b{color:var(--bad)}
figure{margin:12px 0 8px;padding:14px 18px;background:var(--card);border:1px solid var(--line);border-radius:12px;
}
.plot,.word,.legend,.facts,tr,figure svg:not(.key){break-inside:avoid}
figure svg:not(.key){display:block;width:100%;height:auto}
figcaption{color:var(--soft);font-size:.92rem;margin-top:10px;max-width:52rem}
.plot+.plot,.on-page>svg+svg,.on-phone>svg+svg{margin-top:6px}
.on-phone{display:none}
.small{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(270px,100%),1fr));gap:18px 22px}
.small .plot{margin:0;min-width:0}.small h4{margin:0 0 4px;font-size:.95rem}.small p{margin:0;font-size:.85rem;color:var(--soft)}
.wide{overflow-x:auto}
.foot{color:var(--soft);font-size:.88rem;margin:10px 0 0;max-width:60rem}
.word ul{margin:4px 0;padding-left:20px}
table{border-collapse:collapse;font-size:.86rem;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--page)}
thead th{border-bottom:2px solid var(--line)}
tr.head td{font-weight:600;padding-top:14px;color:var(--soft)}
thead th{white-space:normal;min-width:72px;vertical-align:bottom}td.fact{text-align:left;white-space:normal}
td.in1{padding-left:24px!important}td.in2{padding-left:38px!important;color:var(--soft)}
code,pre,.hash{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86em}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:0 0 10px;padding:0;font-size:.88rem}
.legend li{display:flex;align-items:center;gap:7px;min-width:0;overflow-wrap:anywhere}
.key{width:26px;height:10px;flex:none}.key.box{width:12px;height:12px}
summary{cursor:pointer;color:var(--soft)}
.live .legend li{cursor:pointer;border-radius:4px}.live .legend li:hover{background:var(--line)}
.live figure .legend::after{content:"click to hide";color:var(--soft);font-size:.8em;opacity:.7}@media print{.legend::after{content:none!important}}
.legend li.off{opacity:.45;text-decoration:line-through}.gone{display:none}
.five{padding-left:22px;max-width:60rem}.five li{margin:6px 0}.five b{color:var(--accent)}
.contents{columns:3 220px;font-size:.92rem;margin:18px 0;padding:12px 16px 12px 34px;background:var(--card);border:1px solid var(--line);border-radius:10px}
.contents li{margin:2px 0;break-inside:avoid}
details.all{border-bottom:1px solid var(--line)}details.all>summary{padding:9px 0;color:var(--accent);font-weight:600}details.all[open]{padding-bottom:18px}
.get{max-width:none;margin:2px 0 0;font-size:.82rem;display:flex;gap:12px;justify-content:flex-end}table.overview{font-size:.82rem}.overview th,.overview td{padding:4px 8px}
.tp-t{fill:var(--ink)}.tp-s{fill:var(--soft)}.tp-b{fill:var(--page);stroke:var(--line)}.tp-w{fill:var(--card);stroke:var(--soft)}.tp-c{stroke:var(--soft);fill:none}
.tp-g{stroke:var(--c1);fill:none}.tp-gf{fill:var(--c1)}.tp-p{stroke:var(--c0);fill:none}.tp-pf{fill:var(--c0)}.tp-own{fill:var(--m4)}.tp-not{fill:var(--line)}.tp-k{fill:var(--m3)}
.pictures{display:flex;flex-wrap:wrap;gap:14px}.pictures>div{flex:1 1 300px;min-width:0;max-width:480px}.pictures svg{display:block;width:100%;height:auto}
""" + PLOTS + """
@media screen and (max-width:600px){.on-page{display:none}.on-phone{display:block}
main{padding:20px 14px 48px}h1{font-size:1.5rem}h2{margin-top:40px;font-size:1.2rem}figure{padding:12px 10px}
table{font-size:.8rem}th,td{padding:4px 7px}
th:first-child,td:first-child{white-space:normal;min-width:96px;max-width:128px}td.in1{padding-left:12px!important}
td.in2{padding-left:20px!important}}
@page{margin:14mm}
@media print{details::details-content{content-visibility:visible;block-size:auto}.get{display:none}body{font-size:11pt}main{max-width:none;padding:0}h2,h3,h4,.legend{break-after:avoid}
h2{margin-top:24px}.small{grid-template-columns:repeat(3,1fr)}h2+p{break-after:avoid}table{font-size:7.5pt}
th,td{padding:2px 4px}th:first-child,td:first-child{position:static}.wide{overflow:visible}.foot{font-size:8pt}.lead{font-size:11pt}figure{background:none}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
