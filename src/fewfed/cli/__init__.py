"""The command line."""

from __future__ import annotations

import os
import sys
from typing import Any

_INTERRUPTED = 130


def main() -> None:
    """Run the command line: errors a user can cause are one sentence on standard error and exit code 2."""
    import typer

    from fewfed.cli.app import app
    from fewfed.errors import FewfedError

    # The parser's own base class, wherever this version of typer keeps its parser.
    usage_error: Any = typer.BadParameter.__mro__[1]
    try:
        code = app(standalone_mode=False)
    except FewfedError as error:
        _fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has left; Python would complain once more when it flushes what is left of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        place = f" '{error.filename}'" if error.filename else ""
        _fail(f"the system refused{place}: {error.strerror or error}")
    except usage_error as error:
        if not sys.argv[1:]:
            error.show()
            sys.exit(2)
        context = error.ctx
        hint = f" (see '{context.command_path} --help')" if context else ""
        _fail(error.format_message().rstrip(".") + hint)
    if code == _INTERRUPTED:
        print("stopped: 'fewfed resume FOLDER' continues a run from its last checkpoint", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str) -> None:
    print("error: " + " ".join(sentence.split()), file=sys.stderr)
    sys.exit(2)
