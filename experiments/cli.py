"""How a script ends: what `| head`, Ctrl-C and a closed terminal should look like to its user."""
import os
import sys

READER_LEFT = 141   # what a shell shows of a program that ended by SIGPIPE
INTERRUPTED = 130   # and of one that ended by Ctrl-C


def run(main, interrupted="interrupted"):
    """Calls main() and ends the process with its status. A reader that left (`| head`) ends it without a word,
    Ctrl-C with `interrupted`; neither leaves a traceback."""
    name = os.path.basename(sys.argv[0])
    try:
        try:
            status = main()
        except SystemExit as e:  # argparse, after --help
            status = e.code
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        status = READER_LEFT
    except KeyboardInterrupt:
        print(f"\n{name}: {interrupted}", file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status)
