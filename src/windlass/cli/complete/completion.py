"""`windlass completion`: print the completion script of a shell."""

from __future__ import annotations

import argparse

EPILOG = """\
examples:
  source <(windlass completion bash)                                    for this shell only
  windlass completion bash > ~/.local/share/bash-completion/completions/windlass
  windlass completion zsh > ~/.zfunc/_windlass                          with fpath+=~/.zfunc before compinit
  windlass completion fish > ~/.config/fish/completions/windlass.fish

Verbs, options, their values, job files and registered models are completed. The scripts call
`windlass complete`, so they stay up to date when windlass changes.
"""

BASH = """\
_windlass() {
    local IFS=$'\\n'
    COMPREPLY=($(COMP_WORDBREAKS="$COMP_WORDBREAKS" windlass complete --shell bash \\
        --cursor "$COMP_POINT" -- "$COMP_LINE" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then compopt -o nospace; fi
}
complete -o nosort -o default -F _windlass windlass 2>/dev/null || complete -o default -F _windlass windlass
"""

ZSH = """\
#compdef windlass
_windlass() {
    local line word about
    local -a words_found abouts
    line=${(j: :)words[1,CURRENT]}
    while IFS=$'\\t' read -r word about; do
        words_found+=("$word")
        abouts+=("$word  $about")
    done < <(windlass complete --shell zsh -- "$line" 2>/dev/null)
    if (( $#words_found )); then
        compadd -V windlass -l -d abouts -a words_found
    else
        _files
    fi
}
if [[ $funcstack[1] == _windlass ]]; then _windlass "$@"; else compdef _windlass windlass; fi
"""

FISH = """\
function __windlass_complete
    set -l found (windlass complete --shell fish -- (commandline -cp | string collect) 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c windlass -f -k -a '(__windlass_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="bash|zsh|fish", help="the shell")
    parser.add_argument("--json", action="store_true", help="print the script as a JSON string")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.json:
        from windlass.cli.terminal import print_json

        print_json({"shell": args.shell, "script": SCRIPTS[args.shell]})
    else:
        print(SCRIPTS[args.shell], end="")
    return 0
