#!/usr/bin/env python3
"""Makes the manual pages and the completion of shells from what the program's --help says, so that nothing is listed twice.

    packaging/pages.py PROGRAM DIR

writes DIR/starring.1, a page DIR/starring-COMMAND.1 for each command, DIR/starring.bash and DIR/_starring (zsh). The program itself
names the values of an option, when it is given a wrong one.
"""
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

ROW = re.compile(r"^  (?:-(?P<letter>\w), |    )--(?P<name>[\w-]+)(?: (?P<metavar>\S+))? +(?P<help>.*)$")
FILES = re.compile(r"FILE|DIR|PATH|RUN|CONFIG")  # a value of these is a path
NO_VALUE = "?"  # of no option


@dataclass
class Option:
    name: str
    letter: str  # "" : none
    metavar: str  # "": a switch
    help: str
    values: list = field(default_factory=list)

    def words(self):
        return ([f"-{self.letter}"] if self.letter else []) + [f"--{self.name}"]


@dataclass
class Command:
    words: list  # ["bench", "step"]
    usage: str
    summary: list  # its lines
    parts: list  # (heading, [Option]) of each list of options
    examples: list  # lines

    def name(self):
        return "-".join(["starring", *self.words])

    def options(self):
        return [o for _, options in self.parts for o in options]

    def in_a_line(self):
        """The first sentence of what it says of itself."""
        return re.split(r"(?<=\w)[.;:](?: |$)", " ".join(self.summary))[0]


class Failed(Exception):
    pass


def ask(program, *words):
    """Returns what the program prints when it is called by its installed name."""
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.run(["starring", *words], executable=program, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return p.returncode, p.stdout, p.stderr


def help_of(program, *words):
    status, text, why = ask(program, *words, "--help", *["all"] * bool(words))
    if status:
        raise Failed(f"{program} {' '.join(words)} --help: {why.strip()}")
    return text


def command_words(overview):
    """The words of each command that the overview names: "bench step | zero" are two, so are "server | worker"."""
    found = []
    for line in re.findall(r"^  starring ([a-z].*)$", overview.split("\nExamples:")[0], re.M):
        m = re.match(r"(?:([a-z]+) )?([a-z]+(?: \| [a-z]+)+)|([a-z]+)", line)
        found += [[m.group(3)]] if m.group(3) else [[w for w in (m.group(1), last) if w] for last in m.group(2).split(" | ")]
    return found


def parse(words, text):
    """A command of what its --help says."""
    usage, _, rest = text.partition("\n\n")
    head, _, rest = rest.partition("\n\nOptions:\n")
    listed, _, examples = rest.partition("\n\nExamples:\n")
    parts, heading = [], ["Options"]
    parts.append((heading, []))
    for line in listed.split("\n"):
        if m := ROW.match(line):
            parts[-1][1].append(Option(m["name"], m["letter"] or "", m["metavar"] or "", m["help"]))
        elif not line:
            parts.append(([], []))
        else:
            parts[-1][0].append(line.rstrip(":"))
    return Command(words, usage.removeprefix("starring "), head.split("\n"), [(" ".join(h), o) for h, o in parts if o],
                   examples.rstrip("\n").split("\n") if examples else [])


def learn_values(program, commands):
    """The values of each option of train that has a list of them, and of options of the same name and kind elsewhere."""
    train = next(c for c in commands if c.words == ["train"])
    for option in (o for o in train.options() if o.metavar):
        _, _, said = ask(program, "train", f"--{option.name}", NO_VALUE, "--print-config")
        if m := re.search(r"one of ((?:\"[^\"]+\"(?:, )?)+)|possible are ([\w:]+(?:, [\w:]+)*)\n", said):
            option.values = re.findall(r"[\w:]+", m.group(1) or m.group(2))
    known = {(o.name, o.metavar): o.values for o in train.options()}
    for option in (o for c in commands for o in c.options()):
        option.values = known.get((option.name, option.metavar), [])


def ask_all(program):
    """(the overview, every command) of a program that can be started."""
    overview = help_of(program)
    commands = [parse(words, help_of(program, *words)) for words in command_words(overview)]
    learn_values(program, commands)
    return overview, commands


# ---------------------------------------------------------------- manual pages
def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.M)


def page(name, version, in_a_line, sections):
    out = [f'.\\" Written by packaging/pages.py from the program\'s --help.\n.TH {name.upper()} 1 "" "starring {version}" "User Commands"\n'
           f".SH NAME\n{roff(name)} \\- {roff(in_a_line)}\n"]
    return "".join(out + [f".SH {heading.upper()}\n{body}" for heading, body in sections if body])


def verbatim(lines):
    return ".nf\n" + roff("\n".join(lines)) + "\n.fi\n" if lines else ""


def option_rows(options):
    rows = []
    for o in options:
        words = ", ".join(f"\\fB{roff(w)}\\fR" for w in o.words()) + (f" \\fI{roff(o.metavar)}\\fR" if o.metavar else "")
        rows.append(f".TP\n{words}\n{roff(o.help)}\n")
    return "".join(rows)


def command_page(command, version):
    synopsis = f"\\fBstarring {' '.join(command.words)}\\fR {roff(command.usage.removeprefix(' '.join(command.words)).strip())}\n"
    sections = [("Synopsis", synopsis), ("Description", roff(" ".join(command.summary)) + "\n")]
    for heading, options in command.parts:
        rows = option_rows(options)
        sections.append((roff(heading), rows) if len(heading) < 40 else ("Configuration", roff(heading) + ":\n" + rows))
    sections += [("Examples", verbatim(command.examples)), ("See also", "\\fBstarring\\fR(1)\n")]
    return page(command.name(), version, command.in_a_line(), sections)


def overview_page(overview, commands, version):
    first, _, rest = overview.partition("\n\n")
    listed, _, examples = rest.partition("\n\nExamples:\n")
    also = ", ".join(f"\\fB{roff(c.name())}\\fR(1)" for c in commands)
    return page("starring", version, first.partition(": ")[2], [
        ("Synopsis", "\\fBstarring\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"), ("Description", verbatim(listed.split("\n"))),
        ("Examples", verbatim(examples.rstrip("\n").split("\n"))), ("See also", also + "\n")])


# ---------------------------------------------------------------- completion
def groups(commands):
    """{first word: [the second words]}; [] where there is none."""
    found = {}
    for c in commands:
        found.setdefault(c.words[0], []).extend(c.words[1:])
    return found


BASH = """# Completion of bash for starring, written by packaging/pages.py from the program's --help.
_starring() {
    local line=${COMP_LINE:0:COMP_POINT} word before name="" words=() given list=""
    read -ra given <<<"$line"
    word=${line##*[[:space:]]}
    [ -z "$word" ] || unset "given[-1]"
    before=${given[-1]}
    # The command: one word, or two.
    case ${given[1]} in
        GROUPS) name="${given[1]} ${given[2]}" ;;
        *) name=${given[1]} ;;
    esac
    case $word in
        --*=*) before=${word%%=*} word=${word#*=} ;;
    esac
    case ${#given[@]},${given[1]} in
        1,*) list="FIRST --help --version" ;;
SECOND    esac
    if [ -z "$list" ]; then
        case "$name $before" in
VALUES            *) case $name in
OPTIONS            esac ;;
        esac
        case $word,$list in
            -*,* | *,[!-]*) ;;
            *) list="" ;; # no option is begun: files
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$list" -- "$word")
    # Readline replaces what stands behind the last character that breaks words.
    case $word in
        *:*) [[ $COMP_WORDBREAKS != *:* ]] || COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}") ;;
    esac
}
complete -o bashdefault -o default -F _starring starring
"""


def bash(commands):
    by_first = groups(commands)
    two = [first for first, seconds in by_first.items() if seconds]
    second = "".join(f'        2,{first}) list="{" ".join(by_first[first])}" ;;\n' for first in two)
    values, options = "", ""
    for c in commands:
        name = " ".join(c.words)
        options += f'                "{name}") list="{" ".join(w for o in c.options() for w in o.words())}" ;;\n'
        for o in (o for o in c.options() if o.metavar):
            patterns = " | ".join(f'"{name} {w}"' for w in o.words())
            values += f'            {patterns}) list="{" ".join(o.values)}" ;;\n'
    text = BASH.replace("GROUPS", " | ".join(two)).replace("FIRST", " ".join(by_first)).replace("SECOND", second)
    return text.replace("VALUES", values).replace("OPTIONS", options)


def zsh_text(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


def zsh_option(o):
    action = f"({' '.join(v.replace(':', chr(92) + ':') for v in o.values)})" if o.values else "_files" if FILES.search(o.metavar) else ""
    value = f":{zsh_text(o.metavar)}:{action}" if o.metavar else ""
    return [f"        '*{w}[{zsh_text(o.help)}]{value}' \\\n" for w in o.words()]


def zsh(commands):
    by_first = groups(commands)
    named = {" ".join(c.words): c for c in commands}
    out = ["#compdef starring\n# Completion of zsh for starring, written by packaging/pages.py from the program's --help.\n_starring() {\n"
           "    local -a names\n    if (( CURRENT == 2 )); then\n        names=(\n"]
    out += [f"            '{first}:{zsh_text(named[first].in_a_line()) if first in named else ', '.join(seconds)}'\n"
            for first, seconds in by_first.items()]
    out.append("        )\n        _describe command names\n        return\n    fi\n    local name=$words[2]\n")
    for first, seconds in ((f, s) for f, s in by_first.items() if s):
        out.append(f"    if [[ $name == {first} ]]; then\n        if (( CURRENT == 3 )); then\n            names=({' '.join(seconds)})\n"
                   f"            _describe command names\n            return\n        fi\n        name=\"{first} $words[3]\"\n"
                   "        shift words; (( CURRENT-- ))\n    fi\n")
    out.append("    shift words; (( CURRENT-- ))\n    case $name in\n")
    for name, c in named.items():
        out += [f"    '{name}') _arguments \\\n", *(row for o in c.options() for row in zsh_option(o)),
                "        '*:file:_files' ;;\n"]
    return "".join(out) + "    esac\n}\n_starring \"$@\"\n"


def write(program, folder):
    """The names of the files that were written into the folder."""
    program = os.path.abspath(program)
    overview, commands = ask_all(program)
    version = ask(program, "--version")[1].split()[1]
    files = {"starring.1": overview_page(overview, commands, version), "starring.bash": bash(commands), "_starring": zsh(commands)}
    files |= {c.name() + ".1": command_page(c, version) for c in commands}
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    return sorted(files)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        write(sys.argv[1], sys.argv[2])
    except (Failed, OSError, subprocess.TimeoutExpired) as e:
        sys.exit(f"pages: {e}")
