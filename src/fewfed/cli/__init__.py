"""The command line."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewfed.cli.stopping import Stop

_READER_LEFT = 1


def main() -> None:
    """Run the command line. An error is one sentence on standard error: exit code 2 where the user, the user's files or
    the machine are the cause, 70 where it is a fault of fewfed; a stopped command ends with 128 and the signal."""
    from fewfed.cli.stopping import listening

    _ready_output()
    with listening() as stop:
        try:
            code = _guarded(stop)
        except KeyboardInterrupt:
            code = 130
        if stop.asked and code != 0:
            code = stop.code
            _tell("stopped" + _how_to_go_on(sys.argv[1:]))
        sys.exit(code)


def _how_to_go_on(arguments: list[str]) -> str:
    """What a user types to continue the command that was stopped."""
    command = arguments[0] if arguments else ""
    if command in ("compare", "tune", "advise", "reproduce"):
        return ": the same command goes on; finished runs are kept, others continue from their last checkpoint"
    if command in ("run", "resume", "diagnose"):
        return ": 'fewfed resume FOLDER' continues a run from its last checkpoint"
    if command == "serve":
        return ": the same command with --resume goes on; sites wait for it"
    return ""


def _guarded(stop: Stop) -> int:
    """Run the command; what goes wrong is told."""
    try:
        return _run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Whatever clean-up may have run into after a signal, it was the signal that ended the command.
        return stop.code if stop.asked else _failed(error)


def _run() -> int:
    """Parse the arguments and run the command they name; its exit code."""
    # Hundreds of thousands of objects that stay: looking through them again and again is part of a slow start.
    gc.disable()
    try:
        from fewfed.cli.app import app
    finally:
        gc.enable()
    gc.freeze()
    code = app(standalone_mode=False)
    sys.stdout.flush()  # Here a full disk can still be told.
    return code if isinstance(code, int) else 0


def _failed(error: BaseException) -> int:
    """Say what went wrong; the exit code."""
    import typer

    from fewfed.cli.faults import explained, traceback_wanted

    _let_go_of_output()
    if _reader_has_left(error):
        return _READER_LEFT
    # The parser's own base class, wherever this version of typer keeps its parser.
    usage_error: Any = typer.BadParameter.__mro__[1]
    if isinstance(error, usage_error):
        return _misused(error)
    if isinstance(error, typer.Abort):  # A signal, or the end of input where a question was asked.
        return 130
    if traceback_wanted():
        _tell("".join(traceback.format_exception(error)).rstrip())
    sentence, code = explained(error)
    _tell(" ".join(sentence.split()))
    return code


def _misused(error: Any) -> int:
    """What the parser refuses; without any argument, the help."""
    if not sys.argv[1:]:
        error.show()
        return 2
    hint = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
    _tell("error: " + " ".join((error.format_message().rstrip(".") + hint).split()))
    return 2


def _reader_has_left(error: BaseException) -> bool:
    """Whether whoever read our output has left; the parser turns that into an exit of its own."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(cause, OSError) and cause.errno == errno.EPIPE


def _let_go_of_output() -> None:
    """Python would complain once more when it flushes, at its end, what could not be written."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ready_output() -> None:
    """A name that cannot be shown here is shown with escapes, and closed output takes what nobody will read."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _tell(text: str) -> None:
    """A line on standard error, if there is still anybody to read it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)
