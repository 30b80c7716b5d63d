"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line: errors a user can cause are one sentence on standard error and exit code 2."""
    from fewfed.cli.app import app
    from fewfed.errors import FewfedError

    try:
        app()
    except FewfedError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped: 'fewfed resume FOLDER' continues a run from its last checkpoint", file=sys.stderr)
        sys.exit(130)
