#!/bin/sh
# Install vla_rl from this folder, without a network. `sh install.sh --help` lists the options; PYTHON chooses the interpreter.
exec "${PYTHON:-python3}" "$(dirname "$0")/install.py" "$@"
