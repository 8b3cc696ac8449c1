"""The command line: parsing, printing and exit codes only; `demo` and `bench` compute, `console` draws.

`attend`, `info` and `check` are parsed and run by modules of their own. Exit codes: 0 done (`headwise` alone prints
its help), 1 `check` found something wrong, 2 a mistake, said in one line on standard error, 130 interrupted (143 by
SIGTERM, 129 by SIGHUP).
"""

import argparse
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from headwise import __version__, cli_attend, cli_check, cli_info, console, demo, induction
from headwise.arguments import Parser, UsageError, command, count, integer, names, seed, threads
from headwise.bench import cases, page, peers, report
from headwise.bench.agreement import BenchError
from headwise.bench.conditions import usable_cores
from headwise.bench.measure import Outcome, bench
from headwise.files import FileError, listed, shown

_GLUED = (
    "--window",
    "--scale",
    "--softcap",
    "--head",
    "--threads",
    "--repeat",
    "--seed",
    "--hints",
    "--time-limit",
    "--memory-limit",
    "--jobs",
    "--n-heads",
    "--n-kv-heads",
)  # their values may begin with a dash
_COMMANDS = ("demo", "attend", "info", "bench", "check")
_WIDTH = 80  # columns, of lines that can be folded
_T = TypeVar("_T")


# ------------------------------------------------------------------------------------------- parsing
def _glue(arguments: Sequence[str]) -> list[str]:
    """Write `--window -,0` as `--window=-,0`: argparse takes a value that begins with a dash for an option.

    >>> _glue(["attend", "in.npz", "--window", "-,0", "--scale", "--json"])
    ['attend', 'in.npz', '--window=-,0', '--scale', '--json']
    """
    glued: list[str] = []
    for argument in arguments:
        is_value = argument[:1] == "-" and argument[:2] not in ("--", "-o", "-h")
        if is_value and glued and glued[-1] in _GLUED and "--" not in glued:
            glued[-1] += f"={argument}"
        else:
            glued.append(argument)
    return glued


def _parser() -> Parser:
    parser = Parser(prog="headwise", description="Attention for NumPy.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"headwise {__version__}")
    parser.set_defaults(run=lambda options: parser.format_help().rstrip())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(
        command(
            commands,
            "demo",
            "attention over a real sentence, and over 20,000 tokens",
            "--head 9 --causal",
        )
    )
    cli_attend.add(commands)
    cli_info.add(commands)
    _add_bench(command(commands, "bench", "time and memory beside other attention", "--cases tiny --peers naive"))
    cli_check.add(commands)
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--head", type=integer, metavar="H", help="the head of the sentence to draw, from 0")
    parser.add_argument("--causal", action="store_true", help="no token of the sentence sees a later one")
    small = "instead, a small transformer on sequences that repeat themselves: its induction heads at work"
    parser.add_argument("--induction", action="store_true", help=small)
    parser.add_argument("--seed", type=seed, metavar="N", help="of those sequences (default 0)")
    parser.set_defaults(run=_run_demo)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases",
        type=names,
        metavar="A,B",
        help="cases or groups of them, such as 'backward' for gradients and 'serving' for decoding, prompts in chunks, "
        "layers and packed sequences; 'list' prints them all "
        "(default: all but 'long'; takes minutes and GiB)",
    )
    parser.add_argument(
        "--peers",
        type=names,
        metavar="A,B",
        help=f"whom to compare with: {', '.join(peers.PEERS)} (default: those that are installed)",
    )
    parser.add_argument("--repeat", type=count, default=9, metavar="N", help="rounds of timing (default 9)")
    parser.add_argument("--threads", type=threads, metavar="N", help="threads of everybody (default: the cores to use)")
    outputs, gradients, serving = (" and ".join(marks) for marks in page.MARKS.values())
    into = (
        f"put the table between the lines {outputs} of this page, that of gradients between {gradients}, "
        f"that of what serves between {serving}"
    )
    parser.add_argument("--write", metavar="FILE", help=f"{into}; every row that stands there must be measured again")
    parser.set_defaults(run=_run_bench)


# ------------------------------------------------------------------------------------------ printing
def _run_demo(options: argparse.Namespace) -> str:
    if options.induction or options.seed is not None:
        return _run_induction(options)
    try:
        result = demo.demo(options.head, options.causal)
    except FileError:  # a ValueError too: the sample itself is damaged
        raise
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    return console.as_json(result) if options.json else _demo_text(result, console.look(sys.stdout))


def _demo_text(result: demo.Demo, look: console.Look) -> str:
    head, causal = result.heads[result.head], ", causal mask" if result.causal else ""
    difference = "none: it has no causal mask" if result.difference is None else f"{result.difference:.1e}"
    about = [
        ("model", f"{result.about.get('model')}, layer {result.about.get('layer')} (from 0)"),
        ("sentence", result.about.get("sentence")),
        ("tokens", f"{len(result.tokens)}: {' '.join(result.tokens)}"),
    ]
    title = f"Heads{causal}: means over queries; strongest pair but itself and the first"
    columns = ("head", "entropy, bits", "", "strongest pair", "weight", "itself", "previous", "first")
    drawn = f"Head {head.head}{causal}: the weights of each query (row) on each key (column)"
    ends = [
        ("largest difference from the reference weights", difference),
        ("time of the attention", console.duration(result.seconds)),
    ]
    return "\n\n".join(
        [
            console.facts(about, look, _WIDTH),
            console.table(title, columns, [_head_row(one, result.tokens, look) for one in result.heads], look),
            f"{drawn}\n{shown(head.note)}".strip(),
            console.heatmap(result.weights, result.tokens, result.tokens, look),
            console.facts(ends, look),
            _classic_text(result.classic, look),
            _long_text(result.long, look),
        ]
    )


def _run_induction(options: argparse.Namespace) -> str:
    if not options.induction:
        raise UsageError("--seed: expected --induction with it, got none; see headwise demo -h")
    others = ["--head"] * (options.head is not None) + ["--causal"] * options.causal
    if others:
        expected = "expected neither --head nor --causal with it, which are of the sentence"
        raise UsageError(f"--induction: {expected}, got {listed(others)}; see headwise demo -h")
    result = demo.induction_demo(options.seed or 0)
    return console.as_json(result) if options.json else _induction_text(result, console.look(sys.stdout))


def _induction_text(result: demo.InductionDemo, look: console.Look) -> str:
    found, head = result.found, result.head
    about = [
        ("model", f"attention alone, {result.size:,} weights, trained by examples/induction.py"),
        ("sequence", f"{result.tokens}  (random, then the same again)"),
        ("predicted", f"{result.predicted}  (each before it is seen)"),
    ]
    drawn = f"Layer {head.layer}, head {head.head}: the weights of each query (row) on each key (column)"
    stripe = "An induction head: from a token seen before to the one that came after it."
    title = "Heads: mean weights, and the model without each"
    ends = [
        ("judged", f"the repeated half of {found.sequences} other sequences of 2 x {found.half} tokens"),
        ("loss", f"{found.judged.loss:.4f} nats"),
        ("accuracy", f"{found.judged.accuracy:.2%}"),
        ("time", console.duration(result.seconds)),
    ]
    return "\n\n".join(
        [
            console.facts(about, look),
            console.table(title, induction.COLUMNS, induction.rows(found.heads), look),
            f"{drawn}\n{stripe}",
            console.heatmap(result.weights, result.tokens, result.tokens, look),
            console.facts(ends, look),
        ]
    )


def _classic_text(classic: demo.Classic, look: console.Look) -> str:
    batch, n_heads, n_tokens, d_head = classic.shape
    plan = classic.plan
    computed = f"{plan.computed} of {plan.tiles} tiles of scores; the mask rules out all of the others"
    lines = [
        ("time", f"{console.duration(classic.seconds)} on {plan.threads} threads, the best of three"),
        ("computed", computed),
        ("definition", f"at most {classic.difference:.1e} away, in the first item"),
    ]
    title = f"Batch {batch} x {n_tokens} tokens x d_model {n_heads * d_head}, {n_heads} heads, causal"
    return f"{title}\n{console.facts(lines, look)}"


def _long_text(long: demo.LongRun, look: console.Look) -> str:
    _, n_tokens, d = long.shape
    used, stored = (f"{size / 2**20:.4g} MiB" for size in (long.peak, long.scores))
    lines = [
        ("time", f"{console.duration(long.seconds)} on {long.plan.threads} threads"),
        ("memory", f"{used} at its peak, result included; the scores would take {stored}"),
    ]
    title = f"{n_tokens:,} tokens, one head of width {d}, causal, as planned below"
    return f"{title}\n{console.facts(lines, look)}\n\n{long.plan}"


def _head_row(head: demo.HeadSummary, tokens: Sequence[str], look: console.Look) -> list[str]:
    query, key, weight = head.strongest
    shares = (f"{share:.1%}" for share in (head.on_itself, head.on_previous, head.on_first))
    uncertain = console.bar(head.entropy / math.log2(len(tokens)), 8, look)
    pair = f"{tokens[query]} -> {tokens[key]}"
    return [str(head.head), f"{head.entropy:.2f}", uncertain, pair, f"{weight:.2f}", *shares]


def _run_bench(options: argparse.Namespace) -> str:
    if options.cases == ["list"]:
        heads, rows = ("case", "group", "what", "compared with, ratio aimed at"), cases.rows()
        if options.json:
            return console.as_json({"cases": [dict(zip(heads, row, strict=True)) for row in rows]})
        return console.table("Cases", heads, rows, console.look(sys.stdout))
    selected, whom = _chosen(options)
    if options.write is not None:
        page.check_page(options.write, selected)
    n_threads = options.threads or usable_cores()
    whole = cases.whole_groups(selected)
    try:
        with console.Progress(sys.stderr) as line:
            outcome = bench(selected, whom, options.repeat, n_threads, line.tell)
        if options.write is not None:
            page.write_page(options.write, outcome, whole)
    except BenchError as error:
        raise UsageError(str(error)) from error
    if options.json:
        return console.as_json(report.facts(outcome, whole))
    return _bench_text(outcome, whole, console.look(sys.stdout), options.write)


def _or_usage(option: str, choose: Callable[[Sequence[str] | None], list[_T]], names: Sequence[str] | None) -> list[_T]:
    try:
        return choose(names)
    except ValueError as error:
        raise UsageError(f"{option}: {error}; see headwise bench -h") from error


def _chosen(options: argparse.Namespace) -> tuple[list[cases.Case], list[peers.Peer]]:
    """The cases and peers of the options: who is named and absent is an error where a page is to be written."""
    selected = _or_usage("--cases", cases.select, options.cases)
    whom = _or_usage("--peers", peers.chosen, options.peers)
    compared = cases.compared(selected)
    idle = [peer.name for peer in whom if peer.name not in compared]
    if options.peers is not None and idle:
        expected = f"peers that any of these cases is compared with ({listed(compared)})"
        raise UsageError(f"--peers: expected {expected}, got {listed(idle)}; see headwise bench --cases list")
    whom = [peer for peer in whom if peer.name in compared]
    absent = [peer for peer in whom if not peers.is_installed(peer)]
    if options.write is not None and options.peers is not None and absent:
        missing = ", ".join(peer.name for peer in absent)
        install = "; ".join(peer.install for peer in absent)
        raise UsageError(f"--write: expected every named peer to be installed, got none for {missing}; {install}")
    return selected, whom


def _bench_text(outcome: Outcome, whole: Sequence[str], look: console.Look, written: str | None) -> str:
    results = outcome.results
    parts = [
        console.facts(outcome.conditions.facts(), look),
        console.table("Time and memory", report.columns(results), report.rows(results), look),
    ]
    heads, rows = report.mean_table(results)
    if rows:
        parts.append(console.table("Geometric means of ratios (of so many cases)", heads, rows, look))
    if judged := report.verdicts(results, whole):
        parts.append(console.table("Targets", report.TARGET_HEADS, report.target_rows(judged), look))
    parts.append("\n".join(report.legend(results)))
    ends = [(f"failed: {which}", why) for which, why in report.failures(outcome)]
    ends += report.all_notes(outcome)
    ends += [(name, f"not installed: {install}") for name, install in outcome.absent.items()]
    ends += [("written", written)] if written else []
    return "\n\n".join(filter(None, [*parts, console.facts(ends, look)]))


# -------------------------------------------------------------------------------------------- running
@contextmanager
def _writing(needed: bool = False) -> Iterator[None]:
    """Flush standard output while what goes wrong can still be said.

    A reader who has seen enough is no fault, nor is none; but where what is written is needed, as a report whose exit
    code would say that somebody has it.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
        elif needed:
            raise UsageError(f"standard output: {_UNREAD}, got a closed one; open it, or name a file by -o")
    except BrokenPipeError as error:
        _silence()
        if needed:
            raise UsageError(f"standard output: {_UNREAD}, got none; read it, or name a file by -o") from error
    except OSError as error:
        _silence()
        raise UsageError(f"standard output: expected to write all, got '{error.strerror}'; make room") from error


_UNREAD = "expected a reader of the whole report"


class _Stopped(KeyboardInterrupt):
    """A signal that asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _stopping() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, which removes what is half written; the first one counts."""

    def stop(number: int, frame: Any) -> NoReturn:
        for other in taken:
            signal.signal(other, signal.SIG_IGN)
        raise _Stopped(number)

    plain = (signal.SIG_DFL, signal.default_int_handler)
    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    mine = threading.current_thread() is threading.main_thread()  # elsewhere no handler can be set
    taken = {number: signal.getsignal(number) for number in known if mine and signal.getsignal(number) in plain}
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _silence() -> None:
    """Let the interpreter's own flush at exit go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(line: str, code: int = 2) -> int:
    with suppress(OSError):
        console.emit(shown(line, 4000), sys.stderr)
    return code


def _parsed(arguments: Sequence[str]) -> argparse.Namespace | None:
    """Return the options, or None after -h and --version, which argparse answers itself."""
    with _writing(), suppress(SystemExit):
        return _parser().parse_args(_glue(arguments))
    return None


def _run(arguments: Sequence[str]) -> int:
    """Run a command, whose text may come with an exit code."""
    options = _parsed(arguments)
    if options is None:
        return 0
    answer = options.run(options)
    text, code, needed = (answer, 0, False) if isinstance(answer, str) else answer
    with _writing(needed):
        console.emit(text, sys.stdout)
    return int(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        The exit code: 0, 1 where `check` found something wrong, 2 after a mistake, 128 and the signal's number when
        interrupted: 130 after Ctrl-C.

    Examples
    --------
    >>> main(["attend"])  # and on standard error, headwise attend: the following arguments are required: IN; ...
    2
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    who = " ".join(["headwise", *(word for word in arguments[:1] if word in _COMMANDS)])
    try:
        with _stopping():
            return _run(arguments)
    except (UsageError, FileError) as error:
        return _refuse(f"{who}: {error}")
    except MemoryError:
        return _refuse(f"{who}: expected more memory than there is here, got none; free some")
    except KeyboardInterrupt as stopped:
        return _refuse(f"{who}: interrupted", 128 + getattr(stopped, "number", signal.SIGINT))
