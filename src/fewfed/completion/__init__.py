"""Completion of commands, options and names by the shell, from a script that holds them all: `fewfed completion`.

No program is started when somebody presses TAB: fewfed would load torch first, which takes seconds.
"""
